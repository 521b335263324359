"""A cut that fits its devices: as it is, or with some of the forward computed again.

Where memory does not suffice, the cut is chosen with what recomputation costs each stage, and then
every stage recomputes the least that lets it fit. If that finds nothing, the last resorts are the
best cut of the model with every block recomputed, and then the one that needs least memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stagecut.fitted import Fitted, instead_of, noted
from stagecut.ir.device import Cluster
from stagecut.ir.errors import InfeasibleError
from stagecut.ir.graph import Graph
from stagecut.ir.problem import Problem, Relief
from stagecut.ir.solution import Assignment, Solution, Trial
from stagecut.lacking import Lack, least_memory_cuts, more, over_at_peak, too_little
from stagecut.partitioner import evaluate, lacks_memory, may_gain
from stagecut.passes import (
    Clustering,
    Group,
    groups_to_fit,
    parts_of,
    recomputable,
    recomputed,
    relief_of,
    stages_of_ops,
)
from stagecut.peaks import Peaks

Recomputation = Literal["never", "full", "auto"]
Limit = float | Sequence[float] | None
Costed = Mapping[str, Graph]
"""The annotated graph for each kind of device, by its name; that of the first device first."""
_NEARLY_FULL = 0.8
"""Cuts that fit with no stage above this share of its limit are not held back by memory."""
_BISECTIONS = 5
"""Limits tried between one that is too low and one that works."""
_BISECTING_SECONDS = 10.0
"""After which no further one is tried, as a safety stop."""


@dataclass(frozen=True, slots=True)
class Fitter:
    """What a model is cut for."""

    costed: Costed
    cluster: Cluster
    device_of_stage: tuple[int, ...]
    n_microbatches: int
    optimizer: str
    pose: Callable[[Costed, Limit], tuple[Problem, Clustering]]
    """The problem of an annotated graph under a memory limit."""
    solve: Callable[[Problem], Solution]
    solve_relieved: Callable[[Problem, Relief], Solution | None]
    """The best cut where stages may recompute; None if that finds none."""
    weighs_recomputing: bool
    """Whether a cut that fits as it is gives way to a faster one that recomputes."""

    def fit(self, recompute: Recomputation, limit: Limit) -> Fitted:
        """The best cut within `limit`; without one, within the devices' memory, if any does.

        Raises:
            InfeasibleError: the limit was given, and nothing is within it.
        """
        if not self._graph().training or recompute == "never":
            return self._plain(self.costed, limit)
        groups = recomputable(self._graph())
        return self._full(groups, limit) if recompute == "full" else self._auto(groups, limit)

    def _full(self, groups: Sequence[Group], limit: Limit) -> Fitted:
        """The best cut with every block recomputed; of a limit given, whose peaks are within it."""
        marked = self._marked(groups)
        try:
            return noted(self._plain(marked, limit), groups)
        except InfeasibleError:
            if limit is None or not groups:
                raise  # recomputing changes nothing
            leanest = self._leanest(groups, limit)
            if leanest is None:
                raise  # memory is not what stands in the way
        if leanest.missing_bytes > 0:
            raised = more(limit, leanest.missing_bytes)
            problem, _ = self.pose(marked, raised)
            works = (problem.memory_limit_bytes >= leanest.peaks).all()
            raise self._refusal(leanest, groups, raised if works else None)
        made = self._as_fitted(leanest, groups, limit, self._solved(marked, float("inf")))
        return noted(made, groups)

    def _auto(self, groups: Sequence[Group], limit: Limit) -> Fitted:
        problem, clustering = self.pose(self.costed, limit)
        if not groups:
            return self._plain(self.costed, limit)
        if problem.weight_bytes.sum() > problem.memory_limit_bytes.sum():
            return self._refused(groups, None, limit)  # recomputing frees no weights
        plain = self._unless_infeasible(problem, clustering)
        full = self._peaks.fullest(plain, problem) if plain else 0.0
        fits = [plain] if plain and full <= 1 else []
        held_back = self.weighs_recomputing and full > _NEARLY_FULL
        if fits and not (held_back and may_gain(problem, fits[0].seconds)):
            return fits[0]
        relief = relief_of(self._graphs(), clustering, groups)
        relieved = self.solve_relieved(problem, relief)
        cuts = [plain] if plain and not fits else []
        if relieved is not None:
            cuts.append(Fitted(self._graph(), problem, clustering, relieved))
        found = fits + [fit for cut in cuts if (fit := self._within(cut, groups, problem, limit))]
        if found:
            best = min(found, key=lambda fitted: fitted.seconds)
            return instead_of(fits[0], best) if fits and best is not fits[0] else best
        return self._with_everything(groups, problem, plain, limit)

    def _unless_infeasible(self, problem: Problem, clustering: Clustering) -> Fitted | None:
        """The best cut as it is, None if there is none; at once where counting shows that."""
        if lacks_memory(problem):
            return None
        try:
            return self._solved_at_peak(self._graph(), problem, clustering)
        except InfeasibleError:
            return None

    def _with_everything(
        self, groups: Sequence[Group], problem: Problem, plain: Fitted | None, limit: Limit
    ) -> Fitted:
        """The best cut of the model with every block recomputed, or the one of least memory."""
        try:
            cuts = [self._solved(self._marked(groups), limit)]
        except InfeasibleError:
            cuts = []
        leanest = self._leanest(groups, limit)
        if leanest is not None and self._chosen(leanest.stages, groups, problem) is not None:
            free = self._solved(self.costed, float("inf"))
            cuts.append(self._as_fitted(leanest, groups, limit, free))
        for cut in cuts:
            found = self._within(cut, groups, problem, limit)
            if found is not None:
                return found
        return self._refused(groups, plain, limit)

    def _refused(self, groups: Sequence[Group], plain: Fitted | None, limit: Limit) -> Fitted:
        """Without a limit given the best that ignores it, else an error.

        Raises:
            InfeasibleError: the limit was given.
        """
        leanest = None if limit is None else self._leanest(groups, limit)
        if limit is None or leanest is None:  # or memory is not what stands in the way
            return plain or self._plain(self.costed, limit)
        leanest, works = self._least_that_works(leanest, groups, limit)
        raise self._refusal(leanest, groups, works)

    def _least_that_works(
        self, leanest: Lack, groups: Sequence[Group], limit: float | Sequence[float]
    ) -> tuple[Lack, float | Sequence[float] | None]:
        """The nearest cut of all that were tried, and the least limit that `fit` can meet, if any.

        By bisection between the limit given and the one that the leanest cut needs.
        """
        most = more(limit, leanest.missing_bytes)
        raised, _ = self.pose(self.costed, most)
        works = most if self._chosen(leanest.stages, groups, raised) is not None else None
        too_low, enough, began = 0.0, leanest.missing_bytes, time.monotonic()
        for _ in range(_BISECTIONS):
            middle = (too_low + enough) / 2
            if works is None or time.monotonic() - began > _BISECTING_SECONDS:
                break
            tried = more(limit, middle)
            problem, clustering = self.pose(self.costed, tried)
            relief = relief_of(self._graphs(), clustering, groups)
            cut = self.solve_relieved(problem, relief)
            stages = cut and stages_of_ops(self._graph(), clustering, cut.assignment.stage)
            if cut is None or not stages or self._chosen(stages, groups, problem) is None:
                too_low = middle
                continue
            enough, works = middle, tried
            lack = self._lack(cut.assignment, groups, limit)
            leanest = min(leanest, lack, key=lambda lack: lack.missing_bytes)
        return leanest, works

    def _leanest(self, groups: Sequence[Group], limit: Limit) -> Lack | None:
        """Of some cuts the one that lacks least memory with every block recomputed."""
        problem, _ = self.pose(self._marked(groups), limit)
        cuts = least_memory_cuts(problem)
        lacks = (self._lack(cut, groups, limit) for cut in cuts)
        return min(lacks, key=lambda lack: lack.missing_bytes, default=None)

    def _lack(self, assignment: Assignment, groups: Sequence[Group], limit: Limit) -> Lack:
        """A cut with every block recomputed."""
        marked = self._marked(groups)
        problem, clustering = self.pose(marked, limit)
        graph, peak = next(iter(marked.values())), self._peaks.total(problem)
        stages = stages_of_ops(graph, clustering, assignment.stage)
        parts = parts_of(graph, stages, problem.n_stages)
        peaks = tuple(peak(part, index) for index, part in enumerate(parts))
        return Lack(assignment, stages, peaks, problem)

    def _as_fitted(self, lack: Lack, groups: Sequence[Group], limit: Limit, free: Fitted) -> Fitted:
        """A cut with every block recomputed; what bounds it is the solution without a limit."""
        began = time.perf_counter()
        marked = self._marked(groups)
        problem, clustering = self.pose(marked, limit)
        scored = evaluate(problem, lack.assignment)
        trial = Trial(
            "dp", scored.bottleneck_seconds, scored.bytes_cut, time.perf_counter() - began,
            "the cut of least memory",
        )  # fmt: skip
        solution = replace(
            free.solution, assignment=lack.assignment, evaluation=scored, method="dp",
            optimal=False, trials=(trial,),
        )  # fmt: skip
        return Fitted(next(iter(marked.values())), problem, clustering, solution)

    def _refusal(
        self, lack: Lack, groups: Sequence[Group], works: float | Sequence[float] | None
    ) -> InfeasibleError:
        """What every block recomputed still lacks, and a limit with which `fit` finds a cut."""
        graph = recomputed(self._graph(), groups)
        part = parts_of(graph, lack.stages, lack.problem.n_stages)[lack.stage]
        memory = self._peaks.memory(lack.problem, part, lack.stage)
        return too_little(lack, memory, works)

    def _plain(self, costed: Costed, limit: Limit) -> Fitted:
        """As it is; where no limit was given and nothing fits, the best that ignores it."""
        problem, clustering = self.pose(costed, limit)
        graph = next(iter(costed.values()))
        needed, present = problem.weight_bytes.sum(), problem.memory_limit_bytes.sum()
        note = (
            f"It does not fit: weights, gradients and optimizer state alone are "
            f"{needed / 2**30:.0f} GiB, and the devices have {present / 2**30:.0f} GiB. "
            "Take more devices, a smaller dtype, or an optimizer with less state."
        )
        if limit is not None or needed <= present:
            try:
                cut = self._solved_at_peak(graph, problem, clustering)
                memories = self._peaks.of(cut, problem)
                if limit is None or all(memory.fits for memory in memories):
                    return cut
                raise over_at_peak(memories)
            except InfeasibleError as error:
                if limit is not None:
                    raise
                note = f"It does not fit: {error}"
        return replace(self._solved(costed, float("inf")), notes=(note,))

    def _solved_at_peak(self, graph: Graph, problem: Problem, clustering: Clustering) -> Fitted:
        made = Fitted(graph, problem, clustering, self.solve(problem))
        return self._peaks.within(made, self.solve)

    def _solved(self, costed: Costed, limit: Limit) -> Fitted:
        problem, clustering = self.pose(costed, limit)
        return Fitted(next(iter(costed.values())), problem, clustering, self.solve(problem))

    def _within(
        self, cut: Fitted, groups: Sequence[Group], problem: Problem, limit: Limit
    ) -> Fitted | None:
        """The cut with the least recomputed that fits; None where nothing does."""
        stages = cut.stages
        chosen = self._chosen(stages, groups, problem)
        if chosen is None:
            return None
        marked = self._marked(chosen)
        posed, clustering = self.pose(marked, limit)
        evaluation = evaluate(posed, cut.solution.assignment)
        trials = tuple(
            replace(trial, bottleneck_seconds=evaluation.bottleneck_seconds)
            if trial.method == cut.solution.method
            else trial
            for trial in cut.solution.trials
        )
        solution = replace(cut.solution, evaluation=evaluation, trials=trials, optimal=False)
        note = "The lower bound leaves memory out: part of the gap is the price of recomputing."
        made = Fitted(next(iter(marked.values())), posed, clustering, solution, (note,))
        return noted(made, chosen)

    def _chosen(
        self, stages: Sequence[tuple[int, ...]], groups: Sequence[Group], problem: Problem
    ) -> tuple[Group, ...] | None:
        """What the stages recompute at least to fit; None where that is not enough."""
        limits = [float(bytes_) for bytes_ in problem.memory_limit_bytes]
        parts = parts_of(self._graph(), stages, problem.n_stages)
        return groups_to_fit(self._graph(), parts, groups, limits, self._peaks.total(problem))

    @property
    def _peaks(self) -> Peaks:
        return Peaks(
            self.cluster, self.device_of_stage, self.n_microbatches, self.optimizer,
            self._graph().training,
        )  # fmt: skip

    def _graph(self) -> Graph:
        return next(iter(self.costed.values()))

    def _graphs(self) -> list[Graph]:
        """One for each kind of device of the pipeline, in its order."""
        return [self.costed[name] for name in dict.fromkeys(d.name for d in self.cluster.devices)]

    def _marked(self, groups: Sequence[Group]) -> Costed:
        return {name: recomputed(graph, groups) for name, graph in self.costed.items()}
