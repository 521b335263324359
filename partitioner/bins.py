"""Bins of prefix weights, and the least that crosses a boundary whose prefix lies in each.

Legend:  B bins; prefix: what is in the first s stages; A[v], D[v] work up to and from v, W all
work; g a level: stage work surely above it.

For a boundary in bin b, of a stage of more than g work:

    m_in[g, b]      the least that enters the stage over a prefix of the bin
    m_out[g, b]     the least that leaves it                                    (cuts.py)
"""

from __future__ import annotations

import numpy as np

from stagecut.ir.problem import FloatArray
from stagecut.partitioner.arrays import BoolArray
from stagecut.partitioner.closures import closure_weights
from stagecut.partitioner.cuts import Bin, Pairs, least_crossing
from stagecut.partitioner.relaxed import Relaxed

_LEVELS = (0.0, 0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.97, 1.0)
_FIRST_BINS = 96


class Bins:
    """Bins with their least crossings; everything in the units of `relaxed`."""

    def __init__(self, relaxed: Relaxed) -> None:
        self.relaxed = relaxed
        self._known: dict[tuple[int, int, int, bytes], float] = {}
        self.before, self.after = closure_weights(relaxed.edges, relaxed.work)
        self.total = float(relaxed.work.sum())
        self.slack = 1e-9 * self.total
        self.levels = np.asarray(_LEVELS) * min(1.0, self.total)
        ends = np.linspace(0.0, self.total, _FIRST_BINS + 1)
        self.lo, self.hi = ends[:-1], ends[1:]
        self.crossings = self._crossings_of(self.lo, self.hi)
        """Shape [B, 2, prices, levels + 1]: m_in and m_out by level, then for all pairs."""

    def __len__(self) -> int:
        return len(self.lo)

    def transfers(self, into: int, out_of: int) -> FloatArray:
        """Shape [B, B]: least transfers at those prices of a stage of bin i to bin j."""
        start, stop = np.arange(len(self))[:, None], np.arange(len(self))
        gap = np.maximum(self.lo - self.hi[:, None], 0.0)
        level = np.searchsorted(self.levels, gap - self.slack) - 1
        transfers: FloatArray = self.crossings[start, 0, into, level]
        transfers += self.crossings[stop, 1, out_of, level]
        transfers[level < 0] = 0.0
        transfers[start > stop] = np.inf
        return transfers

    def split(self, alive: BoolArray, split: BoolArray) -> None:
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
