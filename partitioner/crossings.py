"""The least that crosses boundaries, by the work before them; remembered from bound to bound.

Legend:  A[v], D[v] work up to and from v, W all work; g a level: stage work surely above it.

For boundaries with lo to hi work before them, of a stage of more than g work:

    m_in[g]     the least that enters the stage
    m_out[g]    the least that leaves it                     (cuts.py)

Pairs of an item's members are certified from some level on (docs/lower-bound.md, Lemmas 2 and 3):
both are step functions of g that grow with the number of pairs counted. Nothing here depends on
the limit that a bound is about, so what one has found serves the next.
"""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray, Problem
from stagecut.partitioner.closures import closure_weights
from stagecut.partitioner.cuts import Bin, Pairs, least_crossings
from stagecut.partitioner.relaxed import relax

_SAME = 1 - 1e-6
"""Least crossings this close count as the lower of the two: capacities are rounded."""


class Crossings:
    """Of one problem; all in seconds."""

    def __init__(self, problem: Problem) -> None:
        self.relaxed = relaxed = relax(problem)
        self.before, self.after = closure_weights(relaxed.edges, relaxed.work)
        self.total = float(relaxed.work.sum())
        self.slack = 1e-9 * self.total
        self._sides = (relaxed.entering, relaxed.leaving)
        self._apart = tuple(
            self.total - self.before[pairs.first] - self.after[pairs.second]
            for pairs in self._sides
        )
        """The most work of a stage that has neither end of a pair which its boundary separates."""
        self._prices = tuple(
            sorted(set(prices.tolist()))
            for prices in (relaxed.entering_price[1:], relaxed.leaving_price[:-1])
        )
        self._known: dict[tuple[float, float, int, int], dict[int, float]] = {}

    def least(
        self, lo: FloatArray, hi: FloatArray, levels: FloatArray
    ) -> tuple[FloatArray, IntArray]:
        """Shape [B, 2, prices, levels + 1]: m_in and m_out by level, then for all pairs.

        Infinite where no prefix has such a weight. And shape [B, 2, raisable]: the level from
        which each item surely crosses and is counted, levels + 1 for none.
        """
        shape = (len(lo), 2, len(self.relaxed.costs), len(levels) + 1)
        found = np.full(shape, np.inf)
        sure = np.full((len(lo), 2, len(self.relaxed.raisable)), len(levels) + 1)
        asked: dict[tuple[int, int, int], _Steps] = {}
        for b, ends in enumerate(zip(lo.tolist(), hi.tolist(), strict=True)):
            place = self._bin(*ends)
            if place.empty:
                continue
            found[b] = 0.0
            for side in (0, 1):
                pairs, certain_above = self._counted(place, side, *ends)
                counts = np.searchsorted(certain_above, levels, side="right").tolist()
                for price in self._prices[side]:
                    known = self._known.setdefault((*ends, side, price), {0: 0.0})
                    asked[b, side, price] = _Steps(place, pairs, [*counts, len(pairs)], known)
                self._note_sure(sure[b, side], place, pairs, certain_above, levels)
        self._find(asked)
        for at, steps in asked.items():
            found[at] = [steps.known[count] for count in steps.counts]
        return found, sure

    def _find(self, asked: dict[tuple[int, int, int], _Steps]) -> None:
        """Finds what is asked, in rounds of as many minimum cuts as can be told apart."""
        pending = list(asked.items())
        while pending:
            wanted: dict[int, list[tuple[_Steps, int]]] = defaultdict(list)
            for at, steps in pending:
                wanted[at[2]] += [(steps, count) for count in steps.wanted()]
            for price, each in wanted.items():
                queries = [(steps.place, steps.pairs.chosen(slice(n))) for steps, n in each]
                least = least_crossings(queries, self.relaxed.costs[price]).tolist()
                for (steps, count), seconds in zip(each, least, strict=True):
                    steps.known[count] = seconds
            pending = [(at, steps) for at, steps in pending if not steps.complete]

    def _bin(self, lo: float, hi: float) -> Bin:
        edges = self.relaxed.edges
        inside = self.total - self.after < lo - self.slack
        outside = self.before > hi + self.slack
        free = ~(inside | outside)
        return Bin(inside, outside, edges[free[edges].all(axis=1)])

    def _counted(self, place: Bin, side: int, lo: float, hi: float) -> tuple[Pairs, FloatArray]:
        """The pairs that may cross, and from which level each counts: ascending."""
        pairs = self._sides[side]
        here = np.flatnonzero(place.may_cross(pairs))
        if side == 0:
            alone = self.total - self.after[pairs.second[here]] - hi
        else:
            alone = lo - self.before[pairs.first[here]]
        certain_above = np.minimum(self._apart[side][here], alone)
        order = np.argsort(certain_above, kind="stable")
        return pairs.chosen(here[order]), certain_above[order]

    def _note_sure(
        self,
        sure_from: IntArray,
        place: Bin,
        pairs: Pairs,
        certain_above: FloatArray,
        levels: FloatArray,
    ) -> None:
        """Writes the least level [raisable] with a pair of the item that is counted and crosses."""
        raisable = self.relaxed.raisable
        if not len(raisable):
            return
        crosses = place.inside[pairs.first] & place.outside[pairs.second] & pairs.head_first
        at = np.searchsorted(raisable, pairs.item)
        crosses &= raisable[np.minimum(at, len(raisable) - 1)] == pairs.item
        level = np.searchsorted(levels, certain_above[crosses])
        np.minimum.at(sure_from, at[crosses], level)


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """The least crossing of one bin, by how many of its pairs count."""

    place: Bin
    pairs: Pairs
    """Those that count first come first."""
    counts: list[int]
    """What is asked for."""
    known: dict[int, float]
    """By count; filled bit by bit, and kept."""

    @property
    def complete(self) -> bool:
        return all(count in self.known for count in self.counts)

    def wanted(self) -> list[int]:
        """Counts to find next: the middle one between any two known ones that differ."""
        if len(self.pairs) not in self.known:
            return [len(self.pairs)]
        known, landmarks = self.known, sorted(self.known)
        between: dict[int, list[int]] = defaultdict(list)
        for count in sorted(set(self.counts) - set(landmarks)):
            above = bisect(landmarks, count)
            least, most = known[landmarks[above - 1]], known[landmarks[above]]
            if least >= most * _SAME:
                known[count] = min(least, most)
            else:
                between[above].append(count)
        return [counts[len(counts) // 2] for counts in between.values()]
