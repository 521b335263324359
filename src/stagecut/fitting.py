"""A cut that fits its devices: as it is, or with some of the forward computed again.

Where memory does not suffice, the cut is chosen with what recomputation costs each stage, and then
every stage recomputes the least that lets it fit. If that finds nothing, the last resort is the
best cut of the model with every block recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stagecut.ir.device import Cluster
from stagecut.ir.errors import InfeasibleError
from stagecut.ir.graph import Graph
from stagecut.ir.problem import Problem, Relief
from stagecut.ir.solution import Solution
from stagecut.partitioner import evaluate, lacks_memory
from stagecut.passes import (
    Clustering,
    Group,
    Part,
    groups_to_fit,
    memory_of_stage,
    modules_recomputed,
    parts_of,
    recomputable,
    recomputed,
    relief_of,
    stages_of_ops,
)
from stagecut.report.units import seconds_text

Recomputation = Literal["never", "full", "auto"]
Limit = float | Sequence[float] | None
Costed = Mapping[str, Graph]
"""The annotated graph for each kind of device, by its name; that of the first device first."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A problem with its solution, and the graph that it stands for."""

    graph: Graph
    problem: Problem
    clustering: Clustering
    solution: Solution
    notes: tuple[str, ...] = ()


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

    def fit(self, recompute: Recomputation, limit: Limit) -> Fitted:
        """The best cut within `limit`; without one, within the devices' memory, if any does.

        Raises:
            InfeasibleError: the limit was given, and nothing is within it.
        """
        if not self._graph().training or recompute == "never":
            return self._plain(self.costed, limit)
        groups = recomputable(self._graph())
        if recompute == "full":
            everything = self._plain(self._marked(groups), limit)
            return self._noted(everything, groups, self._stages(everything))
        return self._auto(groups, limit)

    def _auto(self, groups: Sequence[Group], limit: Limit) -> Fitted:
        problem, clustering = self.pose(self.costed, limit)
        if not groups or problem.weight_bytes.sum() > problem.memory_limit_bytes.sum():
            return self._plain(self.costed, limit)  # recomputing frees no weights
        plain = self._unless_infeasible(problem, clustering)
        if plain is not None and not self._over(plain, problem):
            return plain
        relief = relief_of(self._graphs(), clustering, groups)
        relieved = self.solve_relieved(problem, relief)
        cuts = [plain] if plain else []
        if relieved is not None:
            cuts.append(Fitted(self._graph(), problem, clustering, relieved))
        found = [fit for cut in cuts if (fit := self._within(cut, groups, problem, limit))]
        if found:
            return min(found, key=lambda f: f.solution.evaluation.bottleneck_seconds)
        return self._with_everything(groups, problem, plain, limit)

    def _unless_infeasible(self, problem: Problem, clustering: Clustering) -> Fitted | None:
        """The best cut as it is, None if there is none; at once where counting shows that."""
        if lacks_memory(problem):
            return None
        try:
            return Fitted(self._graph(), problem, clustering, self.solve(problem))
        except InfeasibleError:
            return None

    def _with_everything(
        self, groups: Sequence[Group], problem: Problem, plain: Fitted | None, limit: Limit
    ) -> Fitted:
        """The best cut of the model with every block recomputed."""
        try:
            everything = self._solved(self._marked(groups), limit)
        except InfeasibleError as error:
            if limit is not None and plain is None:
                raise InfeasibleError(f"even with every block recomputed, {error}") from error
        else:
            found = self._within(everything, groups, problem, limit)
            if found is not None:
                return found
        return plain or self._plain(self.costed, limit)

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
                return Fitted(graph, problem, clustering, self.solve(problem))
            except InfeasibleError as error:
                if limit is not None:
                    raise
                note = f"It does not fit: {error}"
        return replace(self._solved(costed, float("inf")), notes=(note,))

    def _solved(self, costed: Costed, limit: Limit) -> Fitted:
        problem, clustering = self.pose(costed, limit)
        return Fitted(next(iter(costed.values())), problem, clustering, self.solve(problem))

    def _within(
        self, cut: Fitted, groups: Sequence[Group], problem: Problem, limit: Limit
    ) -> Fitted | None:
        """The cut with the least recomputed that fits; None where nothing does."""
        stages = self._stages(cut)
        limits = [float(bytes_) for bytes_ in problem.memory_limit_bytes]
        parts = parts_of(self._graph(), stages, problem.n_stages)
        chosen = groups_to_fit(self._graph(), parts, groups, limits, self._peak(problem))
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
        return self._noted(made, chosen, stages)

    def _over(self, cut: Fitted, problem: Problem) -> bool:
        """Whether some stage is over its limit."""
        peak, limits = self._peak(problem), problem.memory_limit_bytes
        parts = parts_of(cut.graph, self._stages(cut), problem.n_stages)
        return any(peak(part, index) > limits[index] for index, part in enumerate(parts))

    def _peak(self, problem: Problem) -> Callable[[Part, int], float]:
        def peak(part: Part, index: int) -> float:
            kind = self.cluster.devices[self.device_of_stage[index]].kind
            return memory_of_stage(
                part, index, problem, kind, self.optimizer, True, self.n_microbatches
            ).total

        return peak

    def _graph(self) -> Graph:
        return next(iter(self.costed.values()))

    def _graphs(self) -> list[Graph]:
        """One for each kind of device of the pipeline, in its order."""
        return [self.costed[name] for name in dict.fromkeys(d.name for d in self.cluster.devices)]

    def _marked(self, groups: Sequence[Group]) -> Costed:
        return {name: recomputed(graph, groups) for name, graph in self.costed.items()}

    def _stages(self, cut: Fitted) -> tuple[tuple[int, ...], ...]:
        return stages_of_ops(cut.graph, cut.clustering, cut.solution.assignment.stage)

    def _noted(
        self, cut: Fitted, groups: Sequence[Group], stages: Sequence[Sequence[int]]
    ) -> Fitted:
        """With a note of what each stage recomputes."""
        stages_of = range(cut.problem.n_stages)
        mine = [[g for g in groups if index in stages[g[0]]] for index in stages_of]
        notes = []
        for index, modules in enumerate(modules_recomputed(cut.graph, mine)):
            ops = [cut.graph.ops[op] for group in mine[index] for op in group]
            seconds = sum(op.cost.forward.seconds for op in ops if op.cost)
            if modules:
                notes.append(
                    f"Stage {index} recomputes {', '.join(modules)} in the backward, "
                    f"{seconds_text(seconds)} a micro-batch, to hold less memory."
                )
        return replace(cut, notes=(*cut.notes, *notes))
