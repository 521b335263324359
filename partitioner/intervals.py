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


class Grid:
    """Adds up rectangles over the intervals of one order that end and start at given boundaries."""

    def __init__(self, ends: IntArray, starts: IntArray) -> None:
        """An empty grid over ascending `ends` and ascending `starts`."""
        self._ends, self._starts = ends, starts
        self._corners: list[IntArray] = []
        self._amounts: list[FloatArray] = []

    def touched(self, spans: Spans, amount: FloatArray) -> None:
        """Adds amount [items] to every interval that has a member of the item."""
        near = self._reached(spans.position)
        position = spans.position[near]
        self._add(position, spans.previous[near] + 1, position + 1, amount[spans.item[near]])

    def contained(self, spans: Spans, amount: FloatArray) -> None:
        """Adds amount [items] to every interval that has all members of the item."""
        item = spans.by_last[self._reached(spans.last[spans.by_last])]
        first = spans.first[item]
        self._add(spans.last[item], np.zeros_like(first), first + 1, amount[item])

    def holds(self, position: IntArray, amount: FloatArray) -> None:
        """Adds amount [items] to every interval that has the item's one position."""
        near = np.flatnonzero((position >= self._starts[0]) & (position < self._ends[-1]))
        position = position[near]
        self._add(position, np.zeros_like(position), position + 1, amount[near])

    def holds_until(self, position: IntArray, until: IntArray, amount: FloatArray) -> None:
        """Adds amount [m] to every interval that has position [m] and ends before until [m]."""
        near = np.flatnonzero((position >= self._starts[0]) & (position < self._ends[-1]))
        position, until, amount = position[near], until[near], amount[near]
        none = np.zeros_like(position)
        self._add(position, none, position + 1, amount)
        self._add(until, none, position + 1, -amount)

    def sum(self) -> FloatArray:
        """Shape [ends, starts]: the totals C[j, i]; entries with end <= start mean nothing."""
        rows, columns = len(self._ends), len(self._starts) + 1
        corners = np.concatenate([*self._corners, np.zeros(0, dtype=np.int64)])
        amounts = np.concatenate([*self._amounts, np.zeros(0)])
        cells = sums(corners, amounts, rows * columns).reshape(rows, columns)
        np.cumsum(cells, axis=0, out=cells)
        np.cumsum(cells, axis=1, out=cells)
        return np.ascontiguousarray(cells[:, :-1])

    def _reached(self, position: IntArray) -> slice:
        """The part of ascending positions that some interval of the grid has."""
        low, high = np.searchsorted(position, [self._starts[0], self._ends[-1]])
        return slice(int(low), int(high))

    def _add(self, last: IntArray, low: IntArray, high: IntArray, amount: FloatArray) -> None:
        """Adds to intervals that end after `last` and start from `low` on, before `high`."""
        row = np.searchsorted(self._ends, last, side="right")
        low, high = np.searchsorted(self._starts, low), np.searchsorted(self._starts, high)
        kept = (low < high) & (row < len(self._ends)) & (amount != 0)
        row, low, high, amount = row[kept], low[kept], high[kept], amount[kept]
        width = len(self._starts) + 1
        self._corners += [row * width + low, row * width + high]
        self._amounts += [amount, -amount]


def range_maximum(figure: FloatArray, ends: IntArray, starts: IntArray) -> FloatArray:
    """Shape [ends, starts]: the largest of figure [n] in each interval; 0 where it is empty."""
    largest = np.zeros((len(ends), len(starts)))
    if not figure.any():
        return largest
    at = np.unique(np.concatenate([starts, ends]))
    buckets = np.maximum.reduceat(figure[: at[-1]], at[:-1]) if len(at) > 1 else np.zeros(0)
    seen = np.where(starts <= at[:-1, None], buckets[:, None], 0.0)
    np.maximum.accumulate(seen, axis=0, out=seen)
    row = np.searchsorted(at, ends) - 1
    largest[row >= 0] = seen[row[row >= 0]]
    return largest
