"""How much work must come before and after each cluster.

Legend:  A[v] work of v and all its ancestors, D[v] of v and all its descendants, b clusters between
two series points.

A series point is a cluster that all earlier ones lead to and that leads to all later ones: repeated
layers have one each. Between two of them ancestors are counted with bitsets, in O(b^2 / 64) words;
in blocks too large for that, A[v] is taken as the heaviest A of a predecessor and v itself, which
is too low at worst: the lower bound stays valid.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray

_LARGEST_BLOCK = 16_384
_ROWS = 1024


def closure_weights(edges: IntArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """A and D, shape [n] each, for edges (a, b) with a < b."""
    n = len(weight)
    mirrored = (n - 1 - edges)[:, ::-1]
    before = _ancestor_weights(edges, weight)
    after = _ancestor_weights(mirrored, weight[::-1])[::-1]
    return before, after


def series_points(edges: IntArray, n: int) -> IntArray:
    """The clusters that every other one is an ancestor or a descendant of."""
    source, target = edges.T
    last_before, first_after = np.full(n, -1), np.full(n, n)
    np.maximum.at(last_before, target, source)
    np.minimum.at(first_after, source, target)
    here = np.arange(n)
    ready = _covering(last_before + 1, here + 1, n)
    unused = _covering(here, first_after, n)
    return np.flatnonzero((ready == 1) & (unused == 1))


def _covering(start: IntArray, stop: IntArray, n: int) -> IntArray:
    """Shape [n]: how many of the half-open ranges cover each position."""
    opened = np.bincount(start, minlength=n + 1)
    closed = np.bincount(stop, minlength=n + 1)
    return np.cumsum(opened - closed)[:n]


def _ancestor_weights(edges: IntArray, weight: FloatArray) -> FloatArray:
    n = len(weight)
    up_to = np.concatenate([[0.0], np.cumsum(weight)])
    above = up_to[1:].copy()
    predecessors: list[list[int]] = [[] for _ in range(n)]
    for a, b in edges.tolist():
        predecessors[b].append(a)
    points = series_points(edges, n)
    starts = np.concatenate([[-1], points])
    stops = np.concatenate([points, [n]])
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        if stop - start == 2:
            above[start + 1] = up_to[start + 1] + weight[start + 1]
        elif stop - start > 2:
            block = slice(start + 1, stop)
            local = [[p - start - 1 for p in predecessors[v] if p > start] for v in range(n)[block]]
            above[block] = up_to[start + 1] + _within(local, weight[block])
    return above


def _within(predecessors: Sequence[list[int]], weight: FloatArray) -> FloatArray:
    """A inside one block."""
    if len(weight) > _LARGEST_BLOCK:
        return _underestimate(predecessors, weight)
    b = len(weight)
    bits = np.zeros((b, (b + 7) // 8), dtype=np.uint8)
    for v, before in enumerate(predecessors):
        if before:
            np.bitwise_or.reduce(bits[before], axis=0, out=bits[v])
        bits[v, v >> 3] |= 128 >> (v & 7)
    above = np.empty(b)
    for row in range(0, b, _ROWS):
        above[row : row + _ROWS] = np.unpackbits(bits[row : row + _ROWS], axis=1)[:, :b] @ weight
    return above


def _underestimate(predecessors: Sequence[list[int]], weight: FloatArray) -> FloatArray:
    above = weight.tolist()
    for v, before in enumerate(predecessors):
        above[v] += max((above[p] for p in before), default=0.0)
    return np.asarray(above)
