"""Every prefix of a nearly-chain that each boundary between stages may be.

A prefix has all predecessors of what it has. Windows fix most groups on one side of a boundary; of
the free ones every set closed under precedence is listed, unless these are too many.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stagecut.ir.problem import FloatArray, IntArray
from stagecut.partitioner.arrays import BoolArray
from stagecut.partitioner.closed_sets import closed_sets
from stagecut.partitioner.sidings import Joined

_MOST_PREFIXES = 5_000
_MOST_PAIRS = 20_000_000
"""Pairs of prefixes of boundaries in a row, all together: their loads are kept."""
_MOST_CELLS = 100_000_000
"""Prefixes times values: what crosses each is kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The prefixes that one boundary may be."""

    members: NDArray[np.float32]
    """Shape [L, free]: 1 for each free group that is in the prefix."""
    free: IntArray
    """Shape [free]."""
    inside: BoolArray
    """Shape [m]: in every prefix."""

    def sums(self, amount: FloatArray) -> FloatArray:
        """Shape [L]: the sum of `amount` [m] over each prefix."""
        free = self.members.astype(np.float64) @ amount[self.free]
        total: FloatArray = free + amount[self.inside].sum()
        return total


def levels_of(graph: Joined, low: IntArray, high: IntArray) -> list[Level] | None:
    """The prefixes of every boundary, the model's ends included; None if there are too many."""
    levels, k = [], len(graph.entering)
    for boundary in range(k + 1):
        inside = (high < boundary) | (boundary == k)
        free = np.flatnonzero((low < boundary) & ~inside)
        found = _prefixes(graph.edges, free)
        if found is None:
            return None
        levels.append(Level(found, free, inside))
    pairs = sum(len(a.members) * len(b.members) for a, b in pairwise(levels))
    cells = sum(len(level.members) for level in levels) * len(graph.values)
    return levels if pairs <= _MOST_PAIRS and cells <= _MOST_CELLS else None


def _prefixes(edges: IntArray, free: IntArray) -> NDArray[np.float32] | None:
    """Shape [L, free]: every set of free groups that is closed under precedence among them."""
    place = {group: i for i, group in enumerate(free.tolist())}
    before = [0] * len(free)
    after: list[list[int]] = [[] for _ in free]
    both = np.isin(edges, free).all(axis=1)
    for a, b in edges[both].tolist():
        before[place[b]] |= 1 << place[a]
        after[place[a]].append(place[b])
    found = closed_sets(before, after, 0, 0, _MOST_PREFIXES)
    if found is None:
        return None
    width = len(free) // 8 + 1
    raw = b"".join(prefix.to_bytes(width, "little") for prefix in found)
    octets = np.frombuffer(raw, dtype=np.uint8).reshape(len(found), width)
    bits = np.unpackbits(octets, axis=1, bitorder="little")[:, : len(free)]
    return bits.astype(np.float32)
