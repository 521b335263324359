"""Exact costs of every interval of a linear order, between candidate boundaries.

Legend:  q candidate boundaries; C[j, i] the cost of the stage that ends at boundary j and starts at
i (i < j).

An item (a value, weight or saved storage) with members at positions p1 < p2 < ... is touched by
the stage [l, r) if for one pair of neighbours p < p' it has p < l <= p' and r > p': disjoint
rectangles in the (l, r) plane, one a member. The stage contains all of it if l <= p1 and
r > p_last: one more rectangle. Rectangles are added in a 2-D difference array and summed up twice,
so all q^2 costs take O(members + q^2); a part of them takes its own size and its members.

        r |   touched by p2    . touched      What a stage pays for an item that others touch
          |   [p1+1..p2] x r>p2. by p1        too ("partly") is touched less contained.
        p2|--------------------.--------
          |                    .[..p1] x r>p1
        p1|                    .--------
          +-----------------------------> l
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stagecut.ir.problem import FloatArray, Incidence, IntArray, Problem
from stagecut.partitioner.arrays import sums


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Where the members of each item lie in an order."""

    item: IntArray
    """Shape [members]: the item of each membership."""
    position: IntArray
    """Shape [members]: ascending."""
    previous: IntArray
    """Shape [members]: the position of the item's member before, or -1."""
    first: IntArray
    """Shape [items]; -1 where an item has no members."""
    last: IntArray
    """Shape [items]."""
    by_last: IntArray
    """The items that have members, by their last."""

    @staticmethod
    def of(items: Incidence, position: IntArray) -> Spans:
        """The spans of `items` where cluster c is at position[c]."""
        item = np.repeat(np.arange(len(items)), np.diff(items.offsets))
        at = position[items.members]
        by_item = np.lexsort((at, item))
        at, item = at[by_item], item[by_item]
        starts = np.zeros(len(at), dtype=bool)
        occupied = items.offsets[:-1][np.diff(items.offsets) > 0]
        starts[occupied] = True
        previous = np.where(starts, -1, np.roll(at, 1))
        first = np.full(len(items), -1, dtype=np.int64)
        last = np.full(len(items), -1, dtype=np.int64)
        first[item[::-1]] = at[::-1]
        last[item] = at
        by_last = np.argsort(last, kind="stable")
        along = np.argsort(at, kind="stable")
        return Spans(
            item[along], at[along], previous[along], first, last, by_last[last[by_last] >= 0]
        )


@dataclass(frozen=True, slots=True, eq=False)
class LinearOrder:
    """A problem seen along one order of its clusters; read for many sets of boundaries."""

    problem: Problem
    order: IntArray
    """Shape [n]: the cluster at each position."""
    position: IntArray
    """Shape [n]: the position of each cluster."""
    values: Spans
    weights: Spans
    saved: Spans
    producer: IntArray
    """Shape [v]: the position of each value's producer."""

    @staticmethod
    def of(problem: Problem, order: IntArray) -> LinearOrder:
        """Reads `problem` along `order`."""
        position = np.empty(problem.n, dtype=np.int64)
        position[order] = np.arange(problem.n)
        heads = problem.values.members[problem.values.offsets[:-1]]
        return LinearOrder(
            problem,
            order,
            position,
            Spans.of(problem.values, position),
            Spans.of(problem.weights, position),
            Spans.of(problem.saved, position),
            position[heads],
        )

    def seconds(self, kind: int) -> FloatArray:
        """Shape [n + 1]: compute seconds of the first clusters, on one kind of device."""
        each = self.problem.forward_seconds[kind] + self.problem.backward_seconds[kind]
        return np.concatenate([[0.0], np.cumsum(each[self.order])])

    def live(self, amount: FloatArray) -> FloatArray:
        """Shape [n + 1]: the sum of `amount` [v] over the values that cross each boundary."""
        n = self.problem.n
        opens = sums(self.values.first + 1, amount, n + 2)
        closes = sums(self.values.last + 1, amount, n + 2)
        return np.cumsum(opens - closes)[: n + 1]


@dataclass(frozen=True, slots=True, eq=False)
class Rectangles:
    """Sets of intervals between candidate boundaries, in which amounts are added up.

    Rectangle m: the intervals that end at candidate row[m] or later and start at low[m] or later,
    before high[m]. None starts after its row.
    """

    item: IntArray
    """Shape [m]: which amount counts in it."""
    row: IntArray
    """Shape [m]: ascending."""
    low: IntArray
    high: IntArray

    @staticmethod
    def touched(spans: Spans, candidates: IntArray) -> Rectangles:
        """The intervals that have a member of an item."""
        return _rectangles(candidates, spans.item, spans.position, spans.previous, spans.position)

    @staticmethod
    def contained(spans: Spans, candidates: IntArray) -> Rectangles:
        """The intervals that have all members of an item."""
        item = spans.by_last
        first, last = spans.first[item], spans.last[item]
        return _rectangles(candidates, item, last, np.full_like(first, -1), first)

    @staticmethod
    def holding(position: IntArray, candidates: IntArray) -> Rectangles:
        """The intervals that have position [items]."""
        item, none = np.arange(len(position)), np.full_like(position, -1)
        return _rectangles(candidates, item, position, none, position)

    @staticmethod
    def all_of(parts: Sequence[Rectangles], counts: Sequence[int]) -> Rectangles:
        """All of `parts`, whose amounts, `counts` of them, come one after another."""
        shifts = np.cumsum([0, *counts[:-1]]).tolist()
        item = np.concatenate([p.item + by for p, by in zip(parts, shifts, strict=True)])
        row, low, high = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("row", "low", "high")
        )
        by_row = np.argsort(row, kind="stable")
        return Rectangles(item[by_row], row[by_row], low[by_row], high[by_row])

    def add_to(self, grid: Grid, amount: FloatArray) -> None:
        """Adds amount [items] to the intervals of each item's rectangles."""
        near = grid.reached(self.row)
        grid.add(self.row[near], self.low[near], self.high[near], amount[self.item[near]])


def _rectangles(
    candidates: IntArray, item: IntArray, last: IntArray, after: IntArray, until: IntArray
) -> Rectangles:
    """Those of intervals that end after last and start in after + 1 .. until, by position."""
    row, low, high = (np.searchsorted(candidates, at, side="right") for at in (last, after, until))
    kept = np.flatnonzero((low < high) & (row < len(candidates)))
    kept = kept[np.argsort(row[kept], kind="stable")]
    return Rectangles(item[kept], row[kept], low[kept], high[kept])


class Grid:
    """Adds up rectangles over a block of the intervals: those that end and start there."""

    def __init__(self, ends: slice, starts: slice) -> None:
        """An empty grid over those candidates."""
        self._ends, self._starts = ends, starts
        self._corners: list[IntArray] = []
        self._amounts: list[FloatArray] = []

    def reached(self, row: IntArray) -> slice:
        """The part of rectangles by ascending row that the block may have a share of."""
        low, high = row.searchsorted((self._starts.start + 1, self._ends.stop))
        return slice(int(low), int(high))

    def add(self, row: IntArray, low: IntArray, high: IntArray, amount: FloatArray) -> None:
        """Adds amount [m] to the intervals that end from row on and start in low .. high - 1."""
        width = self._starts.stop - self._starts.start + 1
        low = np.maximum(low - self._starts.start, 0)
        high = np.minimum(high - self._starts.start, width - 1)
        kept = np.flatnonzero((low < high) & (amount != 0) & (row < self._ends.stop))
        base, amount = np.maximum(row[kept] - self._ends.start, 0) * width, amount[kept]
        self._corners += [base + low[kept], base + high[kept]]
        self._amounts += [amount, -amount]

    def sum(self) -> FloatArray:
        """Shape [ends, starts]: the totals C[j, i]; entries with end <= start mean nothing."""
        rows = self._ends.stop - self._ends.start
        columns = self._starts.stop - self._starts.start + 1
        corners = np.concatenate([*self._corners, np.zeros(0, dtype=np.int64)])
        amounts = np.concatenate([*self._amounts, np.zeros(0)])
        cells = sums(corners, amounts, rows * columns).reshape(rows, columns)
        np.cumsum(cells, axis=0, out=cells)
        np.cumsum(cells, axis=1, out=cells)
        return cells[:, :-1]


def range_maximum(figure: FloatArray, ends: IntArray, starts: IntArray) -> FloatArray:
    """Shape [ends, starts]: the largest of figure [n] in each interval; 0 where it is empty."""
    largest = np.zeros((len(ends), len(starts)))
    if not figure.any():
        return largest
    at = np.unique(np.concatenate([starts, ends]))
    buckets = np.maximum.reduceat(figure[: at[-1]], at[:-1]) if len(at) > 1 else np.zeros(0)
    start, end = np.searchsorted(at, starts), np.searchsorted(at, ends)
    first, early = end[0], int(np.searchsorted(start, end[0], side="right"))
    back = np.maximum.accumulate(np.append(0.0, buckets[:first][::-1]))[::-1]
    on = np.maximum.accumulate(np.append(0.0, buckets[first:]))
    np.maximum(on[end - first, None], back[start[:early]], out=largest[:, :early])
    rest = np.arange(first, len(buckets))[:, None]
    seen = np.where(start[early:] <= rest, buckets[first:, None], 0.0)
    np.maximum.accumulate(seen, axis=0, out=seen)
    later = end > first
    largest[later, early:] = seen[end[later] - 1 - first]
    return largest
