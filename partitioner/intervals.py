"""Exact costs of every interval of a linear order, between candidate boundaries.

Legend:  q candidate boundaries; C[j, i] the cost of the stage between boundaries i and j (i < j).

An item (a value, weight or saved storage) with members at positions p1 < p2 < ... is touched by
the stage [l, r) if for one pair of neighbours p < p' it has p < l <= p' and r > p': disjoint
rectangles in the (l, r) plane, one a member. The stage contains all of it if l <= p1 and
r > p_last: one more rectangle. Rectangles are added in a 2-D difference array and summed up twice,
so all q^2 costs take O(members + q^2).

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
    """Shape [members]: the item, ascending."""
    position: IntArray
    """Shape [members]: ascending within one item."""
    previous: IntArray
    """Shape [members]: the position of the item's member before, or -1."""
    first: IntArray
    """Shape [items]."""
    last: IntArray
    """Shape [items]."""

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
        return Spans(item, at, previous, first, last)


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
    """Adds up rectangles over all pairs of candidate boundaries of one order."""

    def __init__(self, candidates: IntArray, n: int) -> None:
        """An empty grid over ascending `candidates`, the first 0 and the last n."""
        self.q = len(candidates)
        self._rank = np.searchsorted(candidates, np.arange(-1, n), side="right")
        self._corners: list[IntArray] = []
        self._amounts: list[FloatArray] = []

    def touched(self, spans: Spans, amount: FloatArray) -> None:
        """Adds amount [items] to every interval that has a member of the item."""
        low, high = self._rank[spans.previous + 1], self._rank[spans.position + 1]
        self._add(high, low, high, amount[spans.item])

    def contained(self, spans: Spans, amount: FloatArray) -> None:
        """Adds amount [items] to every interval that has all members of the item."""
        occupied = spans.first >= 0
        right = self._rank[spans.last[occupied] + 1]
        left = self._rank[spans.first[occupied] + 1]
        self._add(right, np.zeros_like(left), left, amount[occupied])

    def holds(self, position: IntArray, amount: FloatArray) -> None:
        """Adds amount [items] to every interval that has the item's one position."""
        rank = self._rank[position + 1]
        self._add(rank, np.zeros_like(rank), rank, amount)

    def sum(self) -> FloatArray:
        """Shape [q, q]: the totals C[j, i]; entries with i >= j mean nothing."""
        q = self.q
        corners = np.concatenate([*self._corners, np.zeros(0, dtype=np.int64)])
        amounts = np.concatenate([*self._amounts, np.zeros(0)])
        cells = sums(corners, amounts, q * (q + 1)).reshape(q, q + 1)
        np.cumsum(cells, axis=0, out=cells)
        np.cumsum(cells, axis=1, out=cells)
        return np.ascontiguousarray(cells[:, :q])

    def _add(self, row: IntArray, low: IntArray, high: IntArray, amount: FloatArray) -> None:
        """Adds to rows from `row` on, columns low to high - 1."""
        kept = (low < high) & (row < self.q) & (amount != 0)
        row, low, high, amount = row[kept], low[kept], high[kept], amount[kept]
        width = self.q + 1
        self._corners += [row * width + low, row * width + high]
        self._amounts += [amount, -amount]


def range_maximum(figure: FloatArray, candidates: IntArray) -> FloatArray:
    """Shape [q, q]: the largest of figure [n] between boundaries i and j, at [j, i]; 0 if none."""
    q = len(candidates)
    if not figure.any():
        return np.zeros((q, q))
    buckets = np.maximum.reduceat(figure, candidates[:-1])
    largest = np.zeros((q, q))
    largest[1:] = np.where(np.arange(q) <= np.arange(q - 1)[:, None], buckets[:, None], 0.0)
    return np.maximum.accumulate(largest, axis=0)
