"""The baseline over the module tree, as the published description of SageMaker's partitioner.

Karakus et al., "Amazon SageMaker Model Parallelism" (2021): walk the tree of modules breadth first;
cut a node's children into contiguous segments whose largest cost is least; allot the node's devices
to segments by D'Hondt's method; go on inside every segment that has several. Precedence inside
program order holds, transfers play no part.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from stagecut.ir.errors import ArgumentError
from stagecut.ir.problem import FloatArray, IntArray, Problem
from stagecut.ir.solution import Assignment

_HALVINGS = 60


def tree(problem: Problem) -> Assignment:
    """Cuts along the module tree; pins and memory are not looked at.

    Raises:
        ArgumentError: the problem has no module names.
    """
    if not problem.scopes:
        raise ArgumentError("the problem has no module names to follow; use method='uniform'")
    paths = [tuple(scope.split(".")) if scope else () for scope in problem.scopes]
    seconds = (problem.forward_seconds + problem.backward_seconds).mean(axis=0)
    stage = np.zeros(problem.n, dtype=np.int64)
    pending = [(0, problem.n, 0, 0, problem.n_stages)]
    while pending:
        start, stop, depth, first, devices = pending.pop()
        if devices == 1:
            stage[start:stop] = first
            continue
        children = _children(paths, start, stop, depth)
        if len(children) == 2:
            pending.append((start, stop, depth + 1, first, devices))
            continue
        ends = _segments(seconds, children, devices)
        allotted = _seats(seconds, ends, devices).tolist()
        for (begin, end), seats in zip(pairwise(ends), allotted, strict=True):
            pending.append((begin, end, depth, first, seats))
            first += seats
    return Assignment(stage)


def _children(paths: list[tuple[str, ...]], start: int, stop: int, depth: int) -> list[int]:
    """Boundaries of the runs of clusters in one child module; of single clusters at a leaf."""
    if all(len(path) <= depth for path in paths[start:stop]):
        return list(range(start, stop + 1))
    named = [paths[c][: depth + 1] for c in range(start, stop)]
    inner = [start + i for i in range(1, len(named)) if named[i] != named[i - 1]]
    return [start, *inner, stop]


def _segments(seconds: FloatArray, children: list[int], devices: int) -> list[int]:
    """Boundaries of contiguous segments of children, as many as devices, the largest one least."""
    count = min(devices, len(children) - 1)
    filled = np.concatenate([[0.0], np.cumsum(seconds)])[children]
    low, high = 0.0, float(filled[-1] - filled[0])
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if len(_packed(filled, middle)) - 1 <= count else (middle, high)
    ends = _packed(filled, high)
    while len(ends) - 1 < count:
        wide = max((b - a, -a) for a, b in pairwise(ends))
        begin = -wide[1]
        ends = sorted([*ends, begin + wide[0] // 2])
    return [children[end] for end in ends]


def _packed(filled: FloatArray, most: float) -> list[int]:
    """Greedy segments of at most `most`, or one child where that is more."""
    ends = [0]
    while ends[-1] < len(filled) - 1:
        limit = filled[ends[-1]] + most * (1 + 1e-12)
        end = int(np.searchsorted(filled, limit, side="right")) - 1
        ends.append(max(end, ends[-1] + 1))
    return ends


def _seats(seconds: FloatArray, ends: list[int], devices: int) -> IntArray:
    """D'Hondt: each further device to the segment of most seconds a device, one to each first."""
    cost = np.add.reduceat(seconds, ends[:-1])
    seats, clusters = np.ones(len(cost), dtype=np.int64), np.diff(ends)
    for _ in range(devices - len(cost)):
        claim = np.where(seats < clusters, cost / (seats + 1), -1.0)
        seats[int(claim.argmax())] += 1
    return seats
