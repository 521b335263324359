"""What no assignment can beat: the binned minimum-cut bound. The proof is in docs/lower-bound.md.

Legend:  k stages, n clusters, B bins; prefix: what is in the first s stages; w work, W all of it;
A[v], D[v] work up to and from v; g a level: stage work surely above it.

Every boundary between stages is a prefix, and its work falls into one of B bins. A stage between
prefixes of bins i and j does at least gap = lo_j - hi_i of work, and pays at least

    m_in[g, i]      the least that enters over a prefix of bin i into a stage of more than g work
    m_out[g, j]     the least that leaves it over a prefix of bin j           (cuts.py)

so the least bottleneck over paths of k stages through the bins bounds that of every assignment:

    F[s, j] = min over i <= j of max(F[s - 1, i], gap + m_in + m_out)      from the front
    B[s, i]   the same from the back.

A bin that lies on no path below the incumbent is dropped, the others are split, until the bound
meets the incumbent or the budget ends. The surviving bins of each boundary also tell which clusters
are surely before and after it: `Windows`, which make the exact search small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray, Problem
from stagecut.partitioner.arrays import BoolArray, sums
from stagecut.partitioner.closures import closure_weights
from stagecut.partitioner.cuts import Bin, Pairs, least_crossing
from stagecut.partitioner.relaxed import Relaxed, relax

SAFETY = 1 - 1e-9
"""Bounds are lowered by this, so that rounding never makes one exceed the optimum."""
_LEVELS = (0.0, 0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.97, 1.0)
_FIRST_BINS = 96
_SPLIT_ALL = 150
"""While no more bins than this survive, all are split; then those nearest the bound."""
_NEAR = 0.3
_LEAST_BINS, _MOST_BINS, _BINS_PER_STAGE, _WORK = 600, 2400, 150, 5_000_000
"""Bins ever computed, the budget: so many a stage, `_WORK` over the clusters at most, and between
the first two."""
_NARROWEST = 1e-5
_GAIN = 1e-5
_PATIENCE = 3
_ALIVE = 1 - 1e-8
"""Paths closer to the incumbent than this do not count as better."""


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A lower bound, and what it takes to stay below the incumbent it was computed for."""

    seconds: float
    low: IntArray
    """Shape [n]: the first stage a cluster is in, in any better assignment."""
    high: IntArray
    """Shape [n]: the last. Where low > high, there is no better assignment."""


def simple_bound(problem: Problem) -> float:
    """The larger of the mean load and the largest cluster, in O(t n)."""
    seconds = problem.forward_seconds + problem.backward_seconds
    largest = _on_its_stage(problem, seconds).max(initial=0.0)
    return max(_mean_load(problem, seconds), float(largest)) * SAFETY


def binned_bound(
    problem: Problem, upper: float, gap: float, out_of_time: Callable[[], bool]
) -> Bound:
    """The bound against an incumbent of bottleneck `upper`, refined until within `gap` of it.

    `gap` 0 refines as long as splitting bins helps. Pins and non-empty stages are ignored, memory
    counts what a stage surely has, sends are charged as under the rule "once": all lower than the
    truth at worst.
    """
    low, high = np.zeros(problem.n, dtype=np.int64), np.full(problem.n, problem.n_stages - 1)
    if problem.n_stages == 1 or upper <= 0:
        return Bound(0.0, low, high)
    bound = _Bins(relax(problem, upper), gap).refined(out_of_time)
    return Bound(bound.seconds * upper, bound.low, bound.high)


class _Bins:
    """Bins of prefix weights with their least crossings, split where that may raise the bound.

    Everything is in units of the incumbent's bottleneck.
    """

    def __init__(self, relaxed: Relaxed, gap: float) -> None:
        self.relaxed = relaxed
        self.goal = 1 / (1 + gap)
        self._known: dict[tuple[int, int, int, bytes], float] = {}
        self.before, self.after = closure_weights(relaxed.edges, relaxed.work)
        self.total = float(relaxed.work.sum())
        self.slack = 1e-9 * self.total
        self.levels = np.asarray(_LEVELS) * min(1.0, self.total)
        ends = np.linspace(0.0, self.total, _FIRST_BINS + 1)
        self.lo, self.hi = ends[:-1], ends[1:]
        self.crossings = self._crossings_of(self.lo, self.hi)
        """Shape [B, 2, prices, levels + 1]: m_in and m_out by level, then for all pairs."""

    def refined(self, out_of_time: Callable[[], bool]) -> Bound:
        """Splits and solves again until the goal is met or nothing is gained."""
        best, stalled, spent = 0.0, 0, len(self.lo)
        wanted = min(_BINS_PER_STAGE * self.relaxed.n_stages, _WORK // len(self.before))
        budget = min(max(_LEAST_BINS, wanted), _MOST_BINS)
        through = self._through()
        while True:
            reached = float(through[0].min(initial=np.inf))
            stalled = stalled + 1 if reached < best + _GAIN else 0
            best = max(best, min(reached, 1.0))
            if best >= self.goal or stalled > _PATIENCE or out_of_time():
                break
            alive = through.min(axis=0) < _ALIVE
            split = alive & (self.hi - self.lo > _NARROWEST)
            if np.count_nonzero(split) > _SPLIT_ALL:
                split &= through.min(axis=0) < best + _NEAR * (1 - best)
            spent += 2 * int(np.count_nonzero(split))
            if not split.any() or spent > budget:
                break
            self._split(alive, split)
            through = self._through()
        return self._bound(best, through)

    def _through(self) -> FloatArray:
        """Shape [k - 1, B]: the least bottleneck of a path whose prefix s + 1 is in each bin."""
        k, slowdown = self.relaxed.n_stages, self.relaxed.slowdown
        fits, into, out_of = self._fits(), self.relaxed.entering_price, self.relaxed.leaving_price
        gap = np.maximum(self.lo - self.hi[:, None], 0.0)
        transfers = {
            prices: self._transfers(gap, *prices)
            for prices in set(zip(into[1:-1].tolist(), out_of[1:-1].tolist(), strict=True))
        }

        def cost(stage: int) -> FloatArray:
            """Shape [B, B]: the least load of a stage in the middle, from bin i to bin j."""
            paid = transfers[int(into[stage]), int(out_of[stage])]
            load: FloatArray = slowdown[stage] * gap + paid + fits(stage)[1:, :-1]
            return load

        front = [slowdown[0] * self.lo + self.crossings[:, 1, out_of[0], -1] + fits(0)[0, :-1]]
        back = [slowdown[-1] * (self.total - self.hi) + self.crossings[:, 0, into[-1], -1]]
        back[0] += fits(k - 1)[1:, -1]
        for stage in range(1, k - 1):
            front.append(np.maximum(front[-1][:, None], cost(stage)).min(axis=0, initial=np.inf))
            following = np.maximum(cost(k - 1 - stage), back[-1])
            back.append(following.min(axis=1, initial=np.inf))
        through: FloatArray = np.maximum(np.stack(front), np.stack(back[::-1]))
        return through

    def _transfers(self, gap: FloatArray, into: int, out_of: int) -> FloatArray:
        """Shape [B, B]: least transfers at those prices of a stage of bin i to bin j."""
        n_bins = len(self.lo)
        level = np.searchsorted(self.levels, gap - self.slack) - 1
        start, stop = np.arange(n_bins)[:, None], np.arange(n_bins)
        transfers: FloatArray = self.crossings[start, 0, into, level]
        transfers += self.crossings[stop, 1, out_of, level]
        transfers[level < 0] = 0.0
        transfers[start > stop] = np.inf
        return transfers

    def _fits(self) -> Callable[[int], FloatArray]:
        """By stage position, shape [B + 1, B + 1]: infinity where what it surely has is too much.

        Row 0 is for a stage that starts where the model does, row i + 1 for one after a prefix of
        bin i; column j for one up to a prefix of bin j, column B up to the model's end. Else 0.
        """
        memory, shape = self.relaxed.memory, (len(self.lo) + 1, len(self.lo) + 1)
        if memory is None:
            return lambda stage: np.zeros(shape)
        # Surely outside the prefixes of the first `row` bins, surely inside from bin `column` on.
        row = np.searchsorted(self.hi, self.before - self.slack, side="left")
        column = np.searchsorted(self.lo, self.total - self.after + self.slack, side="right")
        held, saved = (
            np.cumsum(
                np.cumsum(_placed(row, column, size, len(self.lo) + 1)[::-1], axis=0)[::-1], axis=1
            )
            for size in (memory.held_bytes, memory.saved_bytes)
        )
        largest = np.zeros(shape)
        np.maximum.at(largest, (row, column), memory.workspace_bytes)
        largest = np.maximum.accumulate(largest[::-1], axis=0)[::-1]
        workspace = np.maximum.accumulate(largest, axis=1)
        return lambda stage: np.where(memory.exceeded(stage, held, saved, workspace), np.inf, 0.0)

    def _split(self, alive: BoolArray, split: BoolArray) -> None:
        """Halves the bins of `split`, keeps the others alive, drops the rest."""
        kept = alive & ~split
        middle = (self.lo[split] + self.hi[split]) / 2
        lo = np.concatenate([self.lo[split], middle])
        hi = np.concatenate([middle, self.hi[split]])
        lo_all, hi_all = np.concatenate([self.lo[kept], lo]), np.concatenate([self.hi[kept], hi])
        crossings = np.concatenate([self.crossings[kept], self._crossings_of(lo, hi)])
        order = np.argsort(lo_all, kind="stable")
        self.lo, self.hi, self.crossings = lo_all[order], hi_all[order], crossings[order]
        possible = np.isfinite(self.crossings[:, 0, 0, 0])
        self.lo, self.hi = self.lo[possible], self.hi[possible]
        self.crossings = self.crossings[possible]

    def _crossings_of(self, lo: FloatArray, hi: FloatArray) -> FloatArray:
        rows = [self._crossings(*ends) for ends in zip(lo.tolist(), hi.tolist(), strict=True)]
        return np.asarray(rows).reshape(-1, 2, len(self.relaxed.costs), len(self.levels) + 1)

    def _crossings(self, lo: float, hi: float) -> FloatArray:
        """Shape [2, prices, levels + 1] of one bin; infinite where no prefix has such a weight."""
        place = self._bin(lo, hi)
        if place.empty:
            return np.full((2, len(self.relaxed.costs), len(self.levels) + 1), np.inf)
        entering = place.may_cross(self.relaxed.entering)
        leaving = place.may_cross(self.relaxed.leaving)
        into = self.total - self.after[entering.second] - hi
        out_of = lo - self.before[leaving.first]
        sides = (
            (entering, np.minimum(self._apart(entering), into), self.relaxed.entering_price[1:]),
            (leaving, np.minimum(self._apart(leaving), out_of), self.relaxed.leaving_price[:-1]),
        )
        found = np.zeros((2, len(self.relaxed.costs), len(self.levels) + 1))
        for side, (pairs, certain_above, prices) in enumerate(sides):
            for price in set(prices.tolist()):
                found[side, price] = self._by_level(place, pairs, certain_above, price)
        return found

    def _bin(self, lo: float, hi: float) -> Bin:
        edges = self.relaxed.edges
        inside = self.total - self.after < lo - self.slack
        outside = self.before > hi + self.slack
        free = ~(inside | outside)
        return Bin(lo, hi, inside, outside, edges[free[edges].all(axis=1)])

    def _apart(self, pairs: Pairs) -> FloatArray:
        """The most work of a stage that has neither end of a pair that its boundary separates."""
        return self.total - self.before[pairs.first] - self.after[pairs.second]

    def _by_level(
        self, place: Bin, pairs: Pairs, certain_above: FloatArray, price: int
    ) -> FloatArray:
        """Least crossing where a pair counts from its level of certainty on; the last counts all.

        It only grows with the level, so levels between two equal ones need no cut of their own.
        """
        least = np.empty(len(self.levels) + 1)
        least[-1] = self._least(place, pairs, np.ones(len(pairs), dtype=bool), price)

        def fill(first: int, last: int) -> None:
            """Fills the levels strictly between two known ones."""
            if last - first < 2:
                return
            if least[first] == least[last]:
                least[first + 1 : last] = least[first]
                return
            middle = (first + last) // 2
            counted = certain_above <= self.levels[middle]
            least[middle] = self._least(place, pairs, counted, price)
            fill(first, middle)
            fill(middle, last)

        least[0] = self._least(place, pairs, certain_above <= self.levels[0], price)
        fill(0, len(self.levels))
        return least

    def _least(self, place: Bin, pairs: Pairs, counted: BoolArray, price: int) -> float:
        """The least crossing, remembered: neighbouring narrow bins often have the same prefixes.

        What must be in grows with lo and what may be in with hi, so their sizes identify them.
        """
        chosen = pairs.chosen(counted)
        inside, outside = int(place.inside.sum()), int(place.outside.sum())
        drawn = np.stack([chosen.item, chosen.first, chosen.second]).tobytes()
        key = (price, inside, outside, drawn)
        if key not in self._known:
            self._known[key] = least_crossing(place, chosen, self.relaxed.costs[price])
        return self._known[key]

    def _bound(self, best: float, through: FloatArray) -> Bound:
        """The bound with the window of stages left to each cluster by the surviving bins."""
        alive = through < _ALIVE
        lo = np.where(alive, self.lo, np.inf).min(axis=1, initial=np.inf)
        hi = np.where(alive, self.hi, -np.inf).max(axis=1, initial=-np.inf)
        surely_in = self.total - self.after < lo[:, None] - self.slack
        surely_out = self.before > hi[:, None] + self.slack
        return Bound(best * SAFETY, surely_out.sum(axis=0), len(lo) - surely_in.sum(axis=0))


def _placed(row: IntArray, column: IntArray, size: FloatArray, width: int) -> FloatArray:
    """Shape [width, width]: the sums of `size` by row and column."""
    return sums(row * width + column, size, width * width).reshape(width, width)


def _mean_load(problem: Problem, seconds: FloatArray) -> float:
    """Work over devices, for devices that differ.

    For any weights y over the stages with sum 1, the bottleneck is at least the weighted mean of
    the loads, and that at least the sum over clusters of the least y_s * seconds on s. Weights in
    proportion to speed make it tight where one kind is as much faster for every cluster.
    """
    work = seconds.sum(axis=1)[problem.device_kind]
    if not work.all():
        return 0.0
    weight = (1 / work) / (1 / work).sum()
    kinds = np.unique(problem.device_kind)
    least = np.asarray([weight[problem.device_kind == kind].min() for kind in kinds])
    return float((least[:, None] * seconds[kinds]).min(axis=0).sum())


def _on_its_stage(problem: Problem, seconds: FloatArray) -> FloatArray:
    """Seconds [n] of each cluster on the best device its pin allows."""
    best = seconds[np.unique(problem.device_kind)].min(axis=0)
    pinned = problem.pins >= 0
    kind = problem.device_kind[problem.pins]
    return np.where(pinned, seconds[kind, np.arange(problem.n)], best)
