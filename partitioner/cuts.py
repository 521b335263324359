"""The cheapest prefix of the graph among those of about one weight: small minimum cuts.

Legend:  A[v], D[v] work up to and from v (closures.py), W all work; [lo, hi] a bin of prefix work;
c_e seconds to move item e; (u, v) two members of an item, one of them its head.

A prefix I (closed under predecessors) with w(I) in [lo, hi] contains every v with W - D[v] < lo,
for without v it lacks all that follows v; and none with A[v] > hi. What is left is free: few nodes
where layers repeat. Over them a minimum cut finds the least that any such prefix makes cross.

    I | rest        v -> u     infinite, where u precedes v: a prefix has all before it
    s | t           h -> e     c_e      h the head, made first ...
                    e -> v     infinite ... paid once if any user v is outside
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray
from stagecut.partitioner.arrays import BoolArray

_CAPACITY = 2**29
"""Finite capacities sum to at most this; scipy's are 32-bit."""
_MOST_FREE = 4000


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Member pairs (first, second) of items, that cost when first is inside and second outside."""

    item: IntArray
    """Shape [m]."""
    first: IntArray
    second: IntArray
    head_first: BoolArray
    """Shape [m]: whether `first` is the head that the item's pairs share, else `second` is."""

    def chosen(self, which: BoolArray) -> Pairs:
        """The pairs where `which` holds."""
        return Pairs(
            self.item[which], self.first[which], self.second[which], self.head_first[which]
        )

    def __len__(self) -> int:
        return len(self.item)


@dataclass(frozen=True, slots=True, eq=False)
class Bin:
    """The prefixes of weight lo to hi: who must be in, who must be out, what may cross."""

    lo: float
    hi: float
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

    def may_cross(self, pairs: Pairs) -> Pairs:
        """The pairs that some prefix of the bin separates."""
        return pairs.chosen(~self.outside[pairs.first] & ~self.inside[pairs.second])


def least_crossing(place: Bin, pairs: Pairs, cost: FloatArray) -> float:
    """The least cost [items] that a prefix of the bin makes cross, counting `pairs` alone.

    Each item is paid once however many of its pairs cross. Too low at worst: capacities are
    rounded down, and where very many clusters are free only what surely crosses is counted.
    """
    if not len(pairs):
        return 0.0
    crosses = place.inside[pairs.first] & place.outside[pairs.second]
    sure = np.zeros(len(cost), dtype=bool)
    sure[pairs.item[crosses]] = True
    certain = float(cost[sure].sum())
    open_pairs = pairs.chosen(~sure[pairs.item] & (cost[pairs.item] > 0))
    free = ~(place.inside | place.outside)
    if not len(open_pairs) or np.count_nonzero(free) > _MOST_FREE:
        return certain
    return certain + _minimum_cut(place, open_pairs, cost)


def _minimum_cut(place: Bin, pairs: Pairs, cost: FloatArray) -> float:
    from scipy.sparse import coo_array  # here, so that importing the package stays quick
    from scipy.sparse.csgraph import maximum_flow

    items, item = np.unique(pairs.item, return_inverse=True)
    clusters = np.unique(np.concatenate([pairs.first, pairs.second, place.edges.ravel()]))
    node = np.full(len(place.inside), -1)
    node[clusters] = 2 + np.arange(len(clusters))
    node[place.inside], node[place.outside] = 0, 1
    hub = 2 + len(clusters) + item
    size = 2 + len(clusters) + len(items)
    scale = _CAPACITY / cost[items].sum()
    capacity = np.floor(cost[pairs.item] * scale)
    first, second = node[pairs.first], node[pairs.second]
    endless = np.full(len(pairs), 2 * _CAPACITY)
    later, earlier = node[place.edges[:, 1]], node[place.edges[:, 0]]
    always = np.full(len(later), 2 * _CAPACITY)
    arcs = np.concatenate(
        [
            np.stack([first, hub, np.where(pairs.head_first, capacity, endless)], axis=1),
            np.stack([hub, second, np.where(pairs.head_first, endless, capacity)], axis=1),
            np.stack([later, earlier, always], axis=1),
        ]
    ).astype(np.int64)
    key, at = np.unique(arcs[:, 0] * size + arcs[:, 1], return_index=True)
    graph = coo_array(
        (arcs[at, 2].astype(np.int32), (key // size, key % size)), shape=(size, size)
    ).tocsr()
    flow = int(maximum_flow(graph, 0, 1).flow_value)
    return flow / float(scale)
