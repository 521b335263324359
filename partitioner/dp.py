"""The best contiguous cut of a linear order, by dynamic programming over stage boundaries.

Legend:  q candidate boundaries, k stages; T_s[j, i] load of stage s between boundaries i and j.

    F[s, j] = min over i < j of max(F[s - 1, i], T_s[j, i])         the least bottleneck, then
    G[s, j] = min over i < j, T_s[j, i] <= F[k, n] of G[s - 1, i] + T_s[j, i]     the least total

O(k q^2) in numpy. Exact for the order, its candidates and the send rule "once" (what a producer
pays for a value then depends on its stage alone; under "per_consumer" the score counts the rest).
Where links differ, a stage is charged its links with its neighbours. Large orders start from the
narrowest boundary in each of `COARSE` slices of equal work and are refined around the cuts found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray, Problem
from stagecut.ir.solution import Assignment
from stagecut.partitioner.arrays import BoolArray
from stagecut.partitioner.evaluate import LIMIT_TOLERANCE, round_trip_seconds
from stagecut.partitioner.intervals import Grid, LinearOrder, range_maximum

COARSE = 1000
"""Candidate boundaries; every boundary is one where there are no more than that."""
_REFINEMENTS = 3
_SLACK = 1 + 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A contiguous cut of an order."""

    boundaries: IntArray
    """Shape [k + 1], from 0 to n: stage s is positions boundaries[s]..boundaries[s + 1] - 1."""
    bottleneck: float
    """The largest figure of a stage: seconds, or bytes missing."""
    total: float
    """The sum over the stages."""

    def assignment(self, order: IntArray) -> Assignment:
        """The cut as stages of clusters."""
        stage = np.empty(len(order), dtype=np.int64)
        stages = np.arange(len(self.boundaries) - 1)
        stage[order] = np.repeat(stages, np.diff(self.boundaries))
        return Assignment(stage)


def cut_order(problem: Problem, order: IntArray) -> Assignment | None:
    """The best contiguous cut of `order` within memory and pins; None if there is none."""
    cut = _best_cut(LinearOrder.of(problem, order), StageCosts)
    return cut.assignment(order) if cut else None


def least_missing_bytes(problem: Problem, order: IntArray) -> tuple[float, Assignment] | None:
    """The cut of `order` whose worst stage lacks the fewest bytes of memory, and how many.

    None where pins or the number of clusters leave no cut at all.
    """
    cut = _best_cut(LinearOrder.of(problem, order), _MissingBytes)
    return (cut.bottleneck, cut.assignment(order)) if cut else None


def _best_cut(line: LinearOrder, costs: type[StageCosts]) -> Cut | None:
    """The best cut of a line, refined around its boundaries where the line is long."""
    candidates = _coarse_candidates(line)
    best = _solve(costs(line, candidates))
    if len(candidates) == line.problem.n + 1 or best is None:
        return best
    for _ in range(_REFINEMENTS):
        refined = _solve(costs(line, _near(best.boundaries, line.problem.n)))
        if refined is None or _better(best, refined):
            break
        best = refined
    return best


class StageCosts:
    """Load and memory of every interval between candidate boundaries, for each stage position."""

    def __init__(self, line: LinearOrder, candidates: IntArray) -> None:
        """Reads `line` at ascending `candidates`; each distinct matrix is computed once."""
        self.line = line
        self.problem = line.problem
        self.candidates = candidates
        self._loads: dict[bytes, FloatArray] = {}
        self._memory: dict[float, FloatArray] = {}

    def load(self, stage: int) -> FloatArray:
        """Shape [q, q]: T_s[j, i] for stage position `stage`."""
        arriving, leaving = _neighbour_costs(self.problem, stage)
        kind = int(self.problem.device_kind[stage])
        key = bytes([kind % 256]) + arriving.tobytes() + leaving.tobytes()
        if key not in self._loads:
            self._loads[key] = self._load(kind, arriving, leaving)
        return self._loads[key]

    def memory(self, stage: int) -> FloatArray:
        """Shape [q, q]: peak bytes of stage position `stage`."""
        in_flight = float(self.problem.in_flight[stage])
        if in_flight not in self._memory:
            grid = Grid(self.candidates, self.problem.n)
            grid.touched(self.line.weights, self.problem.weight_bytes)
            grid.touched(self.line.saved, self.problem.saved_bytes * in_flight)
            workspace = self.problem.workspace_bytes[self.line.order]
            self._memory[in_flight] = grid.sum() + range_maximum(workspace, self.candidates)
        return self._memory[in_flight]

    def allowed(self, stage: int) -> FloatArray:
        """Like `load`, with infinity where the interval is empty or does not fit."""
        load = np.where(self.forward_pairs(), self.load(stage), np.inf)
        limit = self.problem.memory_limit_bytes[stage]
        if np.isfinite(limit):
            load[self.memory(stage) > limit * LIMIT_TOLERANCE] = np.inf
        if self.problem.allow_empty:
            np.fill_diagonal(load, 0.0)
        return load

    def forward_pairs(self) -> BoolArray:
        """Shape [q, q]: whether boundary i lies before boundary j."""
        q = len(self.candidates)
        before: BoolArray = np.arange(q) < np.arange(q)[:, None]
        return before

    def open_boundaries(self) -> BoolArray:
        """Shape [k + 1, q]: whether the pins let stage s begin at each boundary."""
        low, high = pin_windows(self.problem, self.line.order)
        opened: BoolArray = self.candidates >= low[:, None]
        return opened & (self.candidates <= high[:, None])

    def _load(self, kind: int, arriving: FloatArray, leaving: FloatArray) -> FloatArray:
        line, grid = self.line, Grid(self.candidates, self.problem.n)
        grid.touched(line.values, arriving)
        grid.holds(line.producer, leaving - arriving)
        grid.contained(line.values, -leaving)
        grid.touched(line.weights, self.problem.weight_sync_seconds)
        grid.contained(line.weights, -self.problem.weight_sync_seconds)
        compute = line.seconds(kind)[self.candidates]
        transfers = grid.sum()
        np.maximum(transfers, 0.0, out=transfers)
        load: FloatArray = transfers + (compute[:, None] - compute)
        return load


class _MissingBytes(StageCosts):
    """Counts the bytes an interval lacks in place of its seconds."""

    def allowed(self, stage: int) -> FloatArray:
        """Shape [q, q]: bytes above the stage's limit; infinity where the interval is empty."""
        limit = self.problem.memory_limit_bytes[stage]
        missing: FloatArray = np.maximum(self.memory(stage) - limit * LIMIT_TOLERANCE, 0.0)
        missing[~self.forward_pairs()] = np.inf
        if self.problem.allow_empty:
            np.fill_diagonal(missing, 0.0)
        return missing


def pin_windows(problem: Problem, order: IntArray) -> tuple[IntArray, IntArray]:
    """Shape [k + 1] each: the first and last position where stage s may begin, as pins allow."""
    pins = problem.pins[order]
    pinned = np.flatnonzero(pins >= 0)
    begins = np.arange(problem.n_stages + 1)[:, None]
    low = np.where(pins[pinned] < begins, pinned + 1, 0).max(axis=1, initial=0)
    high = np.where(pins[pinned] >= begins, pinned, len(order)).min(axis=1, initial=len(order))
    return low, high


def _neighbour_costs(problem: Problem, stage: int) -> tuple[FloatArray, FloatArray]:
    """Seconds [v] for a value that arrives from, and leaves to, the neighbouring stage."""
    last = problem.n_stages - 1
    if last == 0:
        nothing = np.zeros(len(problem.values))
        return nothing, nothing
    before, after = (stage - 1 if stage else 1), (stage + 1 if stage < last else last - 1)
    return round_trip_seconds(problem, before, stage), round_trip_seconds(problem, stage, after)


def _solve(costs: StageCosts) -> Cut | None:
    """The least bottleneck, then the least total, over the candidates of `costs`."""
    k, opened = costs.problem.n_stages, costs.open_boundaries()
    bottleneck = _least_bottleneck(costs, opened)
    if not np.isfinite(bottleneck):
        return None
    total = np.where(np.arange(len(costs.candidates)) == 0, 0.0, np.inf)
    choices = []
    for stage in range(k):
        load = costs.allowed(stage)
        load[load > bottleneck * _SLACK] = np.inf
        load += total
        choice = load.argmin(axis=1)
        total = np.where(opened[stage + 1], load[np.arange(len(load)), choice], np.inf)
        choices.append(choice)
    boundaries = [len(total) - 1]
    for choice in reversed(choices):
        boundaries.append(int(choice[boundaries[-1]]))
    return Cut(costs.candidates[boundaries[::-1]], bottleneck, float(total[-1]))


def _least_bottleneck(costs: StageCosts, opened: BoolArray) -> float:
    best = np.where(np.arange(len(costs.candidates)) == 0, 0.0, np.inf)
    for stage in range(costs.problem.n_stages):
        reached = np.maximum(costs.allowed(stage), best).min(axis=1)
        best = np.where(opened[stage + 1], reached, np.inf)
    return float(best[-1])


def _better(cut: Cut, other: Cut) -> bool:
    """Whether `cut` is at least as good as `other`."""
    if cut.bottleneck != other.bottleneck:
        return cut.bottleneck < other.bottleneck
    return cut.total <= other.total


def _coarse_candidates(line: LinearOrder) -> IntArray:
    """All boundaries, or the narrowest one in each of COARSE slices of equal work."""
    n = line.problem.n
    if n < COARSE:
        return np.arange(n + 1)
    work = line.seconds(0)
    share = work / max(work[-1], np.finfo(float).tiny) + np.arange(n + 1) / n
    slices = np.minimum((share / 2 * COARSE).astype(np.int64), COARSE - 1)
    crossing = line.live(line.problem.value_forward_bytes + line.problem.value_backward_bytes)
    by_slice = np.lexsort((crossing, slices))
    narrowest = by_slice[np.unique(slices[by_slice], return_index=True)[1]]
    pinned = np.flatnonzero(line.problem.pins[line.order] >= 0)
    return np.unique(np.concatenate([narrowest, pinned, pinned + 1, [0, n]]))


def _near(boundaries: IntArray, n: int) -> IntArray:
    """The boundaries within reach of the given ones."""
    reach = max(COARSE // (2 * max(len(boundaries) - 2, 1)), 4)
    near = boundaries[:, None] + np.arange(-reach, reach + 1)
    return np.unique(np.clip(near, 0, n))
