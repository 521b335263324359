"""Bins of prefix weights, and the least that crosses a boundary whose prefix lies in each.

Legend:  B bins; prefix: what is in the first s stages; A[v], D[v] work up to and from v, W all
work; g a level: stage work surely above it.

For a boundary in bin b, of a stage of more than g work:

    m_in[g, b]      the least that enters the stage over a prefix of the bin
    m_out[g, b]     the least that leaves it                                    (cuts.py)

Items that surely cross in every prefix of a bin are in that at a fixed price, the cheapest of
any assignment. Windows may show that a stage pays more for them (surcharges.py): it is added.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray
from stagecut.partitioner.arrays import BoolArray
from stagecut.partitioner.closures import closure_weights
from stagecut.partitioner.cuts import Bin, Pairs, least_crossing
from stagecut.partitioner.relaxed import Relaxed
from stagecut.partitioner.surcharges import Surcharges

_LEVELS = (0.0, 0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.97, 1.0)
_FIRST_BINS = 96

Known = dict[bytes, float]
"""Least crossings in seconds, by a digest of the price, of both sides and of the pairs counted."""


class Bins:
    """Bins with their least crossings; everything in the units of `relaxed`."""

    def __init__(self, relaxed: Relaxed, known: Known) -> None:
        """`known` is read and added to: it serves all bounds of one problem."""
        self.relaxed = relaxed
        self._known = known
        self.before, self.after = closure_weights(relaxed.edges, relaxed.work)
        self.total = float(relaxed.work.sum())
        self.slack = 1e-9 * self.total
        self.levels = np.asarray(_LEVELS) * min(1.0, self.total)
        self._surcharges: Surcharges | None = None
        ends = np.linspace(0.0, self.total, _FIRST_BINS + 1)
        self.lo, self.hi = ends[:-1], ends[1:]
        self.crossings, self._sure_from = self._crossings_of(self.lo, self.hi)
        """Shape [B, 2, prices, levels + 1]: m_in and m_out by level, then for all pairs."""

    def __len__(self) -> int:
        return len(self.lo)

    def charge(self, surcharges: Surcharges) -> None:
        """Adds `surcharges` to what stages pay for items that surely cross, from now on."""
        self._surcharges = surcharges

    def surcharge(self, stage: int) -> FloatArray | None:
        """Shape [2, levels + 1, B]: what comes on top of m_in and m_out, None where it is none."""
        added = self._surcharges
        if added is None or not (added.entering[stage].any() or added.leaving[stage].any()):
            return None
        each = (added.entering[stage], added.leaving[stage])
        levels = range(len(self.levels) + 1)
        return np.asarray(
            [[(self._sure_from[:, side] <= g) @ each[side] for g in levels] for side in (0, 1)]
        )

    def level_between(self) -> IntArray:
        """Shape [B, B]: the greatest level surely below a stage of bin i to bin j; -1 for none."""
        gap = np.maximum(self.lo - self.hi[:, None], 0.0)
        level: IntArray = np.searchsorted(self.levels, gap - self.slack) - 1
        return level

    def transfers(self, into: int, out_of: int) -> FloatArray:
        """Shape [B, B]: least transfers at those prices of a stage of bin i to bin j."""
        start, stop = np.arange(len(self))[:, None], np.arange(len(self))
        level = self.level_between()
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
        new, new_sure = self._crossings_of(lo, hi)
        crossings = np.concatenate([self.crossings[kept], new])
        sure_from = np.concatenate([self._sure_from[kept], new_sure])
        order = np.argsort(lo_all, kind="stable")
        order = order[np.isfinite(crossings[order, 0, 0, 0])]  # the others hold no prefix
        self.lo, self.hi = lo_all[order], hi_all[order]
        self.crossings, self._sure_from = crossings[order], sure_from[order]

    def _crossings_of(self, lo: FloatArray, hi: FloatArray) -> tuple[FloatArray, IntArray]:
        """What `_crossings` finds for every bin, stacked."""
        found = [self._crossings(*ends) for ends in zip(lo.tolist(), hi.tolist(), strict=True)]
        count, levels = len(lo), len(self.levels) + 1
        least = np.asarray([least for least, _ in found])
        sure = np.asarray([sure for _, sure in found], dtype=np.int64)
        return (
            least.reshape(count, 2, len(self.relaxed.costs), levels),
            sure.reshape(count, 2, len(self.relaxed.raisable)),
        )

    def _crossings(self, lo: float, hi: float) -> tuple[FloatArray, IntArray]:
        """Shape [2, prices, levels + 1] of one bin; infinite where no prefix has such a weight.

        And shape [2, raisable]: the level from which each item is surely counted.
        """
        place = self._bin(lo, hi)
        never = len(self.levels) + 1
        sure = np.full((2, len(self.relaxed.raisable)), never)
        if place.empty:
            return np.full((2, len(self.relaxed.costs), never), np.inf), sure
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
            self._note_sure(sure[side], place, pairs, certain_above)
        return found, sure

    def _note_sure(
        self, sure_from: IntArray, place: Bin, pairs: Pairs, certain_above: FloatArray
    ) -> None:
        """Writes the least level [raisable] with a pair of the item that is counted and crosses."""
        raisable = self.relaxed.raisable
        if not len(raisable):
            return
        crosses = place.inside[pairs.first] & place.outside[pairs.second] & pairs.head_first
        at = np.searchsorted(raisable, pairs.item)
        crosses &= raisable[np.minimum(at, len(raisable) - 1)] == pairs.item
        level = np.searchsorted(self.levels, certain_above[crosses])
        np.minimum.at(sure_from, at[crosses], level)

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
        """The least crossing, remembered: neighbouring narrow bins often have the same prefixes."""
        chosen = pairs.chosen(counted)
        drawn = np.stack([chosen.item, chosen.first, chosen.second])
        sides = np.packbits(np.stack([place.inside, place.outside]))
        asked = b"".join([bytes([price]), sides.tobytes(), drawn.tobytes()])
        key = blake2b(asked, digest_size=16).digest()
        if key not in self._known:
            least = least_crossing(place, chosen, self.relaxed.costs[price])
            self._known[key] = least * self.relaxed.unit_seconds
        return self._known[key] / self.relaxed.unit_seconds
