"""The state of one search: the incumbent, the bound, the trials and the clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from stagecut.ir.problem import IntArray, Problem
from stagecut.ir.solution import Assignment, Solution, Trial
from stagecut.partitioner.bound import Bound
from stagecut.partitioner.crossings import Crossings
from stagecut.partitioner.evaluate import evaluate, score

PROVED = 1e-6
"""Relative distance to the bound at which a solution counts as optimal."""
_ROUNDING = 1e-8
"""By which a bound may miss the target that it refutes, since it is kept on the safe side."""
_NEWS = 0.995
"""An incumbent this much better makes windows worth computing anew."""
_WORST = (True, np.inf, np.inf, np.inf)


@dataclass(slots=True)
class Attempt:
    """One method's turn."""

    kept: bool = True
    """Whether it belongs in the list of trials."""


class Search:
    """Keeps the best assignment offered, and what each method's best was."""

    def __init__(self, problem: Problem, deadline: float) -> None:
        """`deadline` is a time of the monotonic clock."""
        self.problem = problem
        self.lower_bound_seconds = 0.0
        self._deadline = deadline
        self._stopped = False
        self.proved_infeasible = False
        self.bound: Bound | None = None
        """The bound last computed, while its incumbent stands."""
        self._crossings: Crossings | None = None
        self._incumbent: Assignment | None = None
        self._score = _WORST
        self._method = ""
        self._trials: list[Trial] = []
        self._trial_name = ""
        self._trial_score = _WORST
        self._trial_note = ""

    @contextmanager
    def trial(self, method: str) -> Iterator[Attempt]:
        """Attributes what is offered inside to `method`, and times it, unless it is not kept."""
        self._trial_name, self._trial_score, self._trial_note = method, _WORST, ""
        started = time.monotonic()
        attempt = Attempt()
        yield attempt
        if not attempt.kept:
            return
        faulty, bottleneck, bytes_cut, _ = self._trial_score
        self._trials.append(
            Trial(
                method=method,
                bottleneck_seconds=np.inf if faulty else bottleneck,
                bytes_cut=np.inf if faulty else bytes_cut,
                seconds=time.monotonic() - started,
                note=self._none_found() if faulty else self._trial_note,
            )
        )

    def _none_found(self) -> str:
        """The note of a trial without a valid assignment of its own."""
        offered = self._trial_score != _WORST
        return "nothing feasible found" if offered or not self.feasible else "nothing better found"

    def offer(self, assignment: Assignment, note: str = "") -> None:
        """Keeps `assignment` if it is the best so far."""
        reached = score(evaluate(self.problem, assignment))
        if reached < self._trial_score:
            self._trial_score = reached
            self._trial_note = note or self._trial_note
        if reached < self._score:
            if reached[1] < self._score[1] * _NEWS:
                self.bound = None
            self._score, self._incumbent, self._method = reached, assignment, self._trial_name

    def best(self, cuts: list[tuple[Assignment, IntArray]]) -> list[tuple[Assignment, IntArray]]:
        """`cuts` by score, best first, equal ones once."""
        distinct = {cut[0].stage.tobytes(): cut for cut in cuts}
        return sorted(distinct.values(), key=lambda cut: score(evaluate(self.problem, cut[0])))

    def raise_bound(self, seconds: float) -> None:
        """Notes that no valid assignment has a bottleneck below `seconds`."""
        self.lower_bound_seconds = max(self.lower_bound_seconds, seconds)

    @property
    def incumbent(self) -> Assignment:
        """The best assignment offered."""
        assert self._incumbent is not None, "ask for the incumbent once there is one"
        return self._incumbent

    def aimed(self, gap: float) -> bool:
        """Whether the bound was computed for the incumbent, as far as a certificate of `gap`."""
        target = self.bottleneck_seconds / (1 + gap)
        return self.bound is not None and bool(np.isclose(self.bound.target_seconds, target))

    def free_variables(self) -> float:
        """Stages left to the clusters beyond one each, by the last bound; infinity without one."""
        if self.bound is None:
            return float("inf")
        return float((self.bound.high - self.bound.low).clip(min=0).sum())

    def confirm(self, note: str) -> None:
        """Credits the trial with the incumbent, which it proved or could not improve."""
        if self._score < self._trial_score:
            self._trial_score, self._trial_note = self._score, note

    @property
    def crossings(self) -> Crossings:
        """What the bounds find, kept from one to the next."""
        if self._crossings is None:
            self._crossings = Crossings(self.problem)
        return self._crossings

    @property
    def feasible(self) -> bool:
        """Whether the incumbent breaks no constraint."""
        return self._incumbent is not None and not self._score[0]

    @property
    def faults(self) -> tuple[str, ...]:
        """What the incumbent breaks."""
        return evaluate(self.problem, self.incumbent).faults

    @property
    def bottleneck_seconds(self) -> float:
        """The incumbent's, infinity while there is none that breaks no constraint."""
        return self._score[1] if self.feasible else float("inf")

    @property
    def gap(self) -> float:
        """How far the incumbent may be from the optimum; infinity while there is none."""
        if not self.feasible:
            return float("inf")
        return self._score[1] / max(self.lower_bound_seconds, np.finfo(float).tiny) - 1

    def finished(self, gap: float = PROVED) -> bool:
        """Whether the incumbent is within `gap` of the bound, or time is over."""
        return self.gap <= gap + _ROUNDING or self.out_of_time()

    def seconds_left(self) -> float:
        """Until the deadline, 0 at least."""
        return max(0.0, self._deadline - time.monotonic())

    def out_of_time(self) -> bool:
        """Whether the deadline has passed; the solution will say that it did."""
        if time.monotonic() > self._deadline:
            self._stopped = True
        return self._stopped

    def solution(self) -> Solution:
        """The incumbent with its certificate."""
        evaluation = evaluate(self.problem, self.incumbent)
        # Scores are rounded: a bound that reaches one may be above the bottleneck by as much.
        bound = min(self.lower_bound_seconds, evaluation.bottleneck_seconds)
        return Solution(
            assignment=self.incumbent,
            evaluation=evaluation,
            method=self._method,
            lower_bound_seconds=bound,
            optimal=self.gap <= PROVED,
            trials=tuple(self._trials),
            stopped_by_clock=self._stopped,
        )
