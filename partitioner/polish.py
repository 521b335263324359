"""Making a good assignment better: single moves, then the optimal cut of its own order.

Moves follow Fiduccia and Mattheyses (DAC 1982) inside each cluster's legal window of stages, as
Moreira, Popp and Schulz do for acyclic partitions (GECCO 2018). Any valid assignment, listed stage
by stage, is a contiguous cut of that order, so the dynamic programme on it never does worse; and
taking the better of the two makes `polish` never worse than what it was given.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from stagecut.ir.problem import IntArray, Problem
from stagecut.ir.solution import Assignment
from stagecut.partitioner.arrays import groups
from stagecut.partitioner.dp import cut_order
from stagecut.partitioner.evaluate import evaluate, score
from stagecut.partitioner.moves import Stages

_ROUNDS = 4
_PASSES = 6
_PATIENCE = 40
_ROUNDING = 1 + 1e-9
_MOST_MOVABLE = 3000
_POWER = 12
"""Sum of load^12: close to the largest load, and falls where a second-largest does."""


def _never() -> bool:
    return False


def polish(
    problem: Problem,
    assignment: Assignment,
    order: IntArray | None = None,
    out_of_time: Callable[[], bool] = _never,
) -> Assignment:
    """Improves a valid assignment by moves and re-cutting until neither helps, or time is over.

    `order` is the topological order kept inside the stages; program order where it is None.
    """
    best, best_score = assignment, score(evaluate(problem, assignment))
    for _ in range(_ROUNDS):
        moved = improve_by_moves(problem, best, out_of_time)
        candidates = [moved]
        if not out_of_time():
            scored = evaluate(problem, moved)
            upper = np.inf if scored.faults else scored.bottleneck_seconds * _ROUNDING
            recut = cut_order(problem, relinearise(moved, order), upper, moved)
            candidates += [recut] if recut is not None else []
        scores = [score(evaluate(problem, candidate)) for candidate in candidates]
        winner = scores.index(min(scores))
        if not scores[winner] < best_score:
            return best
        best, best_score = candidates[winner], scores[winner]
    return best


def relinearise(assignment: Assignment, order: IntArray | None = None) -> IntArray:
    """The clusters stage by stage, inside a stage as in `order` (program order if None)."""
    if order is None:
        return np.argsort(assignment.stage, kind="stable")
    return order[np.argsort(assignment.stage[order], kind="stable")]


def improve_by_moves(
    problem: Problem, assignment: Assignment, out_of_time: Callable[[], bool] = _never
) -> Assignment:
    """Passes of single moves, each kept up to its best point; never worse in the bottleneck."""
    if problem.n_stages == 1 or out_of_time():
        return assignment
    search = _MoveSearch(problem, assignment)
    for _ in range(_PASSES):
        if not search.one_pass(out_of_time):
            break
    return search.stages.assignment()


class _MoveSearch:
    """One Fiduccia-Mattheyses search: a heap of moves, a lock on what has moved in the pass."""

    def __init__(self, problem: Problem, assignment: Assignment) -> None:
        self.problem = problem
        self.stages = Stages(problem, assignment)
        source, destination = problem.edges.T
        self._after = groups(source, destination, problem.n)
        self._before = groups(destination, source, problem.n)
        self._pins: list[int] = problem.pins.tolist()
        self._heap: list[tuple[float, int, int]] = []
        self._locked: set[int] = set()

    def one_pass(self, out_of_time: Callable[[], bool]) -> bool:
        """Moves until patience or time ends, then back to the best point; whether it is better."""
        self._locked.clear()
        self._heap.clear()
        for cluster in self._movable():
            self._offer(cluster)
        start = best = self._standing()
        done: list[tuple[int, int]] = []
        kept = 0
        while self._heap and len(done) - kept < _PATIENCE and not out_of_time():
            taken = self._take()
            if taken is None:
                continue
            done.append(taken)
            standing = self._standing()
            if standing < best:
                best, kept = standing, len(done)
        for cluster, origin in reversed(done[kept:]):
            self.stages.move(cluster, origin)
        return best < start

    def _take(self) -> tuple[int, int] | None:
        """Makes the best move if its gain still holds: (cluster, stage it left), else None."""
        offered, cluster, to = heapq.heappop(self._heap)
        if cluster in self._locked or not self._legal(cluster, to):
            return None
        gain = self._gain(cluster, to)
        if self._heap and gain > max(offered, self._heap[0][0]):
            heapq.heappush(self._heap, (gain, cluster, to))
            return None
        origin = self.stages.stage[cluster]
        self.stages.move(cluster, to)
        self._locked.add(cluster)
        for neighbour in (*self._before[cluster], *self._after[cluster]):
            if neighbour not in self._locked:
                self._offer(neighbour)
        return cluster, origin

    def _offer(self, cluster: int) -> None:
        low, high = self._window(cluster)
        at, load = self.stages.stage[cluster], self.stages.load
        if low == high or not self._leaves_one(cluster):
            return
        lightest = min(range(low, high + 1), key=load.__getitem__)
        for to in {low, high, max(at - 1, low), min(at + 1, high), lightest} - {at}:
            if self.stages.fits(cluster, to):
                heapq.heappush(self._heap, (self._gain(cluster, to), cluster, to))

    def _legal(self, cluster: int, to: int) -> bool:
        low, high = self._window(cluster)
        return low <= to <= high and self._leaves_one(cluster) and self.stages.fits(cluster, to)

    def _leaves_one(self, cluster: int) -> bool:
        """Whether the cluster's stage may do without it."""
        return self.stages.size[self.stages.stage[cluster]] > 1 or self.problem.allow_empty

    def _window(self, cluster: int) -> tuple[int, int]:
        """The first and last stage the cluster may be in while its neighbours stay."""
        pin = self._pins[cluster]
        if pin >= 0:
            return pin, pin
        stage = self.stages.stage
        low = max([stage[c] for c in self._before[cluster]], default=0)
        high = min([stage[c] for c in self._after[cluster]], default=self.problem.n_stages - 1)
        return low, high

    def _gain(self, cluster: int, to: int) -> float:
        """Change of the sum of (load / largest load)^12; negative is better."""
        load, unit = self.stages.load, self.stages.largest or 1.0
        gain = 0.0
        for stage, seconds in self.stages.load_change(cluster, to).items():
            before = load[stage]
            gain += ((before + seconds) / unit) ** _POWER - (before / unit) ** _POWER
        return gain

    def _standing(self) -> tuple[float, float, float]:
        """What a pass minimises: bytes that do not fit, bottleneck, evenness."""
        load = self.stages.load
        return (
            self.stages.overflow(),
            float(f"{max(load):.10e}"),
            float(f"{sum(seconds * seconds for seconds in load):.10e}"),
        )

    def _movable(self) -> list[int]:
        """Clusters with another legal stage, those of the most loaded stages first."""
        stage = np.asarray(self.stages.stage)
        source, destination = self.problem.edges.T
        low, high = np.zeros_like(stage), np.full_like(stage, self.problem.n_stages - 1)
        np.maximum.at(low, destination, stage[source])
        np.minimum.at(high, source, stage[destination])
        movable = np.flatnonzero((low < high) & (self.problem.pins < 0))
        heaviest_first = np.argsort(-np.asarray(self.stages.load)[stage[movable]], kind="stable")
        chosen: list[int] = movable[heaviest_first][:_MOST_MOVABLE].tolist()
        return chosen
