"""The cheapest prefix of the graph among those of about one weight: small minimum cuts.

Legend:  A[v], D[v] work up to and from v (closures.py), W all work; [lo, hi] a bin of prefix work;
c_e seconds to move item e; (u, v) two members of an item, one of them its head.

A prefix I (closed under predecessors) with w(I) in [lo, hi] contains every v with W - D[v] < lo,
for without v it lacks all that follows v; and none with A[v] > hi. What is left is free: few nodes
where layers repeat. Over them a minimum cut finds the least that any such prefix makes cross.

    I | rest        v -> u     infinite, where u precedes v: a prefix has all before it
    s | t           h -> e     c_e      h the head, made first ...
                    e -> v     infinite ... paid once if any user v is outside

Each is tiny, so many are solved as one flow: side by side, each behind a source of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray
from stagecut.partitioner.arrays import BoolArray, sums

_CAPACITY = 2**29
"""Finite capacities of one cut sum to at most this; scipy's are 32-bit."""
_ENDLESS = 2 * _CAPACITY
_MOST_FREE = 4000
_CELLS, _MOST_AT_ONCE = 1_000_000, 200
"""Cuts at once times clusters, and cuts at once."""
_SINK, _FIRST = 1, 2
"""Nodes: 0 is the source of all, then the sink, then a source for each cut."""


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Member pairs (first, second) of items, that cost when first is inside and second outside."""

    item: IntArray
    """Shape [m]."""
    first: IntArray
    second: IntArray
    head_first: BoolArray
    """Shape [m]: whether `first` is the head that the item's pairs share, else `second` is."""

    def chosen(self, which: BoolArray | IntArray | slice) -> Pairs:
        """The pairs at `which`."""
        return Pairs(
            self.item[which], self.first[which], self.second[which], self.head_first[which]
        )

    def __len__(self) -> int:
        return len(self.item)


@dataclass(frozen=True, slots=True, eq=False)
class Bin:
    """The prefixes of about one weight: who must be in, who must be out, what may cross."""

    inside: BoolArray
    """Shape [n]: in every such prefix."""
    outside: BoolArray
    """Shape [n]: in none."""
    edges: IntArray
    """Shape [f, 2]: precedence between free clusters."""

    @property
    def empty(self) -> bool:
        """Whether no prefix has such a weight."""
        return bool((self.inside & self.outside).any())

    def may_cross(self, pairs: Pairs) -> BoolArray:
        """Shape [m]: the pairs that some prefix of the bin separates."""
        return ~self.outside[pairs.first] & ~self.inside[pairs.second]


def least_crossings(asked: Sequence[tuple[Bin, Pairs]], cost: FloatArray) -> FloatArray:
    """The least cost [items] that a prefix of each bin makes cross, counting its pairs alone.

    Each item is paid once however many of its pairs cross. Too low at worst: capacities are
    rounded down, and where very many clusters are free only what surely crosses is counted.
    """
    if not asked:
        return np.zeros(0)
    n = max(1, len(asked[0][0].inside))
    at_once = min(max(1, _CELLS // n), _MOST_AT_ONCE)
    parts = [asked[at : at + at_once] for at in range(0, len(asked), at_once)]
    return np.concatenate([_side_by_side(part, cost) for part in parts])


def _side_by_side(asked: Sequence[tuple[Bin, Pairs]], cost: FloatArray) -> FloatArray:
    """The cuts as one graph: cluster c of cut i is number i n + c, item e is i items + e."""
    n, count = len(asked[0][0].inside), len(asked)
    place, pairs = _union(asked, n, len(cost))
    item, at = np.unique(pairs.item, return_inverse=True)
    sure = np.zeros(len(item), dtype=bool)
    sure[at[place.inside[pairs.first] & place.outside[pairs.second]]] = True
    cut, price = np.divmod(item, max(1, len(cost)))
    paid = cost[price]
    certain = sums(cut[sure], paid[sure], count)
    free = np.count_nonzero(~(place.inside | place.outside).reshape(count, n), axis=1)
    counted = ~sure & (paid > 0) & (free[cut] <= _MOST_FREE)
    in_all = sums(cut[counted], paid[counted], count)
    if not in_all.any():
        return certain
    scale = _CAPACITY / np.where(in_all > 0, in_all, 1.0)
    capacity = np.floor(paid * scale[cut])
    chosen = counted[at]
    edges = place.edges[in_all[place.edges[:, 0] // n] > 0]
    flow = _flows(
        Bin(place.inside, place.outside, edges), pairs.chosen(chosen), capacity[at[chosen]], count
    )
    return certain + flow / scale


def _union(asked: Sequence[tuple[Bin, Pairs]], n: int, n_items: int) -> tuple[Bin, Pairs]:
    """All of them as one bin and its pairs."""
    cut = np.repeat(np.arange(len(asked)), [len(pairs) for _, pairs in asked])
    place = Bin(
        np.concatenate([place.inside for place, _ in asked]),
        np.concatenate([place.outside for place, _ in asked]),
        np.concatenate([place.edges + i * n for i, (place, _) in enumerate(asked)]),
    )
    pairs = Pairs(
        np.concatenate([pairs.item for _, pairs in asked]) + cut * n_items,
        np.concatenate([pairs.first for _, pairs in asked]) + cut * n,
        np.concatenate([pairs.second for _, pairs in asked]) + cut * n,
        np.concatenate([pairs.head_first for _, pairs in asked]),
    )
    return place, pairs


def _flows(place: Bin, pairs: Pairs, capacity: FloatArray, count: int) -> FloatArray:
    """The maximum flow through each of `count` cuts side by side; 0 where nothing is counted."""
    from scipy.sparse import csr_array  # here, so that importing the package stays quick
    from scipy.sparse.csgraph import maximum_flow

    n, later, earlier = len(place.inside) // count, place.edges[:, 1], place.edges[:, 0]
    used = np.zeros(len(place.inside), dtype=bool)
    for cluster in (pairs.first, pairs.second, later, earlier):
        used[cluster] = True
    node = np.where(place.inside, _FIRST + np.arange(len(used)) // n, _SINK)
    free = np.flatnonzero(used & ~place.inside & ~place.outside)
    node[free] = _FIRST + count + np.arange(len(free))
    items, item = np.unique(pairs.item, return_inverse=True)
    hub = _FIRST + count + len(free) + item
    size = _FIRST + count + len(free) + len(items)
    arcs = [
        (np.zeros(count), _FIRST + np.arange(count), np.full(count, _ENDLESS)),
        (node[pairs.first], hub, np.where(pairs.head_first, capacity, _ENDLESS)),
        (hub, node[pairs.second], np.where(pairs.head_first, _ENDLESS, capacity)),
        (node[later], node[earlier], np.full(len(later), _ENDLESS)),
    ]
    source, target, most = (
        np.concatenate(ends).astype(np.int64) for ends in zip(*arcs, strict=True)
    )
    key, at = np.unique(source * size + target, return_index=True)
    row, column = np.divmod(key, size)
    starts = np.searchsorted(row, np.arange(size + 1))
    ordered = (most[at], column, starts)
    graph = csr_array(tuple(each.astype(np.int32) for each in ordered), shape=(size, size))
    flow = maximum_flow(graph, 0, _SINK).flow
    sent = slice(flow.indptr[0], flow.indptr[1])
    through = np.zeros(size)
    through[flow.indices[sent]] = flow.data[sent]
    return through[_FIRST : _FIRST + count]
