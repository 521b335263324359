"""The best contiguous cut of a linear order, by dynamic programming over stage boundaries.

Legend:  q candidate boundaries, k stages; T_s[j, i] load of stage s between boundaries i and j.

    F[s, j] = min over i < j of max(F[s - 1, i], T_s[j, i])         the least bottleneck, then
    G[s, j] = min over i < j, T_s[j, i] <= F[k, n] of G[s - 1, i] + T_s[j, i]     the least total

O(k q^2) in numpy. Exact for the order, its candidates and the send rule "once" (what a producer
pays for a value then depends on its stage alone; under "per_consumer" the score counts the rest).
Where links differ, a stage is charged its links with its neighbours. Long orders start from the
narrowest boundary in each of 200 slices of equal work. That cut's bottleneck U leaves boundary s
only where the work before it is at most s U and the work after it at most (k - s) U, and of T_s
only intervals whose work is at most U. Where those are few, all boundaries are tried; else those of
1000 slices, and then those around the cuts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from stagecut.ir.problem import IntArray, Problem, Relief
from stagecut.ir.solution import Assignment
from stagecut.partitioner.evaluate import evaluate, score
from stagecut.partitioner.expected import Expected
from stagecut.partitioner.intervals import LinearOrder
from stagecut.partitioner.memory_costs import MissingBytes, Relieved
from stagecut.partitioner.stage_costs import StageCosts
from stagecut.partitioner.sweep import best_boundaries

_FEW, _MANY = 200, 1000
"""Candidate boundaries of the first and second pass; all of them where there are no more."""
_CELLS = 4_000_000
"""All boundaries are tried where the matrices have no more entries that may be good enough."""
_RECOUNTS, _CLOSE = 4, 1.001
"""Cuts again where the score is above the programme's figure by this factor."""
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A contiguous cut of an order."""

    boundaries: IntArray
    """Shape [k + 1], from 0 to n: stage s is positions boundaries[s]..boundaries[s + 1] - 1."""
    bottleneck: float
    """The largest figure of a stage: seconds, or bytes missing."""
    total: float
    """The sum over the stages."""

    @property
    def figures(self) -> tuple[float, float]:
        """What is minimised, in order."""
        return self.bottleneck, self.total

    def assignment(self, order: IntArray) -> Assignment:
        """The cut as stages of clusters."""
        stage = np.empty(len(order), dtype=np.int64)
        stages = np.arange(len(self.boundaries) - 1)
        stage[order] = np.repeat(stages, np.diff(self.boundaries))
        return Assignment(stage)


def cut_order(
    problem: Problem, order: IntArray, upper: float = np.inf, known: Assignment | None = None
) -> Assignment | None:
    """The best contiguous cut of `order` within memory and pins.

    None if there is none, or none with a bottleneck of at most `upper` seconds before every
    consumer is counted: far quicker to find where `upper` is close to the best. If `order` lists
    the stages of a `known` assignment, transfers are priced by that one from the first.
    """
    line = LinearOrder.of(problem, order)
    if known is None or problem.send_rule != "per_consumer":
        cut = _best_cut(line, StageCosts, upper=upper)
    else:
        expecting = partial(Expected, expected=known.stage[order])
        cut = _best_cut(line, expecting, upper=upper * _ROUNDING)
    return _as_scored(line, cut, upper) if cut else None


def _as_scored(line: LinearOrder, cut: Cut, upper: float) -> Assignment:
    """The cut, or a better one found by pricing transfers as the cut before made them.

    Only where the score is worse than the programme's figure, since that did not count all, and
    only for cuts whose figure is within `upper` and the best score.
    """
    problem, best = line.problem, cut.assignment(line.order)
    reached = evaluate(problem, best)
    if problem.send_rule != "per_consumer" or reached.faults:
        return best
    for _ in range(_RECOUNTS):
        if cut.bottleneck * _CLOSE >= reached.bottleneck_seconds:
            break
        stages = np.repeat(np.arange(problem.n_stages), np.diff(cut.boundaries))
        good = min(upper, reached.bottleneck_seconds) * _ROUNDING
        again = _best_cut(line, partial(Expected, expected=stages), upper=good)
        if again is None:
            break
        cut, candidate = again, again.assignment(line.order)
        scored = evaluate(problem, candidate)
        if score(scored) < score(reached):
            best, reached = candidate, scored
    return best


def least_missing_bytes(problem: Problem, order: IntArray) -> tuple[float, Assignment] | None:
    """The cut of `order` whose worst stage lacks the fewest bytes of memory, and how many.

    None where pins or the number of clusters leave no cut at all. A long order is cut between
    slices and then around the cuts.
    """
    cut = _best_cut(LinearOrder.of(problem, order), MissingBytes, many=_FEW)
    return (cut.bottleneck, cut.assignment(order)) if cut else None


def relieved_cut(
    problem: Problem, order: IntArray, relief: Relief, fine: bool = True
) -> Cut | None:
    """The best cut of `order` where a stage that lacks memory pays for what `relief` frees.

    Not `fine`, a long order is cut between slices alone.
    """
    return _best_cut(LinearOrder.of(problem, order), partial(Relieved, relief=relief), fine)


def _best_cut(
    line: LinearOrder,
    costs: Callable[[LinearOrder, IntArray], StageCosts],
    fine: bool = True,
    upper: float = np.inf,
    many: int = _MANY,
) -> Cut | None:
    """The best cut: of a few boundaries, then of all, or many, that can be as good as that."""
    n, best = line.problem.n, None
    if not np.isfinite(upper):
        best = _solve(costs(line, _candidates(line, _FEW)))
        if best is None and n >= _FEW < many:
            best = _solve(costs(line, _candidates(line, many)))
        if best is None or n < _FEW:
            return best
        upper = best.bottleneck
    if n < many:
        return _better(_solve(costs(line, np.arange(n + 1)), upper), best)
    every = costs(line, np.arange(n + 1)) if fine else None
    if every and every.entries(upper) <= _CELLS:
        return _better(_solve(every, upper), best)
    best = _better(_solve(costs(line, _candidates(line, many)), upper), best)
    if best is None or not fine:
        return best
    for stride in _strides(n):
        near = _near(best.boundaries, n, stride)
        closer = _solve(costs(line, near), best.bottleneck)
        if closer is not None and closer.figures < best.figures:
            best = closer
    return best


def _better(cut: Cut | None, best: Cut | None) -> Cut | None:
    if cut is None or (best is not None and best.figures <= cut.figures):
        return best
    return cut


def _solve(costs: StageCosts, upper: float = np.inf) -> Cut | None:
    """The least bottleneck, then the least total; None if that bottleneck is above `upper`."""
    found = best_boundaries(costs, upper)
    if found is None:
        return None
    boundaries, bottleneck, total = found
    return Cut(costs.candidates[boundaries], bottleneck, total)


def _candidates(line: LinearOrder, most: int) -> IntArray:
    """All boundaries, or the narrowest one in each of `most` slices of equal work."""
    n = line.problem.n
    if n < most:
        return np.arange(n + 1)
    work = line.seconds(0)
    share = work / max(work[-1], np.finfo(float).tiny) + np.arange(n + 1) / n
    slices = np.minimum((share / 2 * most).astype(np.int64), most - 1)
    crossing = line.live(line.problem.value_forward_bytes + line.problem.value_backward_bytes)
    by_slice = np.lexsort((crossing, slices))
    narrowest = by_slice[np.unique(slices[by_slice], return_index=True)[1]]
    pinned = np.flatnonzero(line.problem.pins[line.order] >= 0)
    return np.unique(np.concatenate([narrowest, pinned, pinned + 1, [0, n]]))


def _strides(n: int) -> list[int]:
    """From the width of a slice down to single clusters."""
    stride, strides = -(-n // _MANY), [1, 1]
    while stride > 1:
        strides.append(stride)
        stride //= 4
    return strides[::-1]


def _near(boundaries: IntArray, n: int, stride: int) -> IntArray:
    """The given boundaries and those a few strides from them."""
    reach = max(_MANY // (2 * max(len(boundaries) - 2, 1)), 4)
    near = boundaries[:, None] + stride * np.arange(-reach, reach + 1)
    return np.unique(np.clip(near, 0, n))
