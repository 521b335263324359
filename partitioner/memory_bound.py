"""A lower bound where memory is short: a linear programme of work and memory in the windows.

Legend:  c cluster, s stage; y[c, s] the share of c in stages 0..s, x[c, s] = y[c, s] - y[c, s - 1].

    minimise T    y[c, s - 1] <= y[c, s]      y[b, s] <= y[a, s] for each edge (a, b)
                  sum over c of slowdown[s] work[c] x[c, s] <= T
                  sum over c of (held[c] + in_flight[s] saved[c]) x[c, s] <= what s has

Every assignment is a solution in whole numbers, so no largest load can be below the least T. What
stages send is left out. Where a stage with many micro-batches in flight has room for few layers,
others have more than their share of the work, which no bound on single stages sees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array

from stagecut.ir.problem import FloatArray, IntArray
from stagecut.partitioner.relaxed import Memory, Relaxed

_MOST_FREE = 9_000
"""Variables at most: beyond, one solution takes longer than all the rest of a bound."""
_FEW = 3_000
"""Up to which the dual simplex method is the faster one."""
_SAFETY = 1e-6
"""Relative slack of limits and result, ten times the solver's tolerances."""
_NONE_EXISTS = 2

Entries = tuple[IntArray, IntArray, FloatArray]
"""Row, column and coefficient of each entry."""


def memory_share(relaxed: Relaxed, target_seconds: float, low: IntArray, high: IntArray) -> float:
    """The bound as a share of the target, for assignments with stages low..high [n].

    Along every edge neither `low` nor `high` may fall. 0 where memory is not short or the programme
    is too large, infinity where nothing fits in these windows.
    """
    free = high - low
    if relaxed.memory is None or not 0 < free.sum() <= _MOST_FREE:
        return 0.0
    if not _short(relaxed.memory, low, high):
        return 0.0
    from scipy.optimize import linprog  # slow to import

    v = _Variables.of(low, high)
    load, limits = _stage_rows(relaxed, relaxed.memory, target_seconds, v)
    order = _order_rows(relaxed, v)
    rows = np.concatenate([load[0], order[0] + len(limits)])
    columns, values = (np.concatenate([load[i], order[i]]) for i in (1, 2))
    n_rows, n_columns = len(limits) + len(order[0]) // 2, v.count + 1
    objective, upper = np.zeros(n_columns), np.ones(n_columns)
    objective[-1], upper[-1] = 1.0, np.inf
    solved = linprog(
        objective,
        A_ub=coo_array((values, (rows, columns)), shape=(n_rows, n_columns)).tocsr(),
        b_ub=np.concatenate([limits, np.zeros(n_rows - len(limits))]),
        bounds=np.stack([np.zeros(n_columns), upper], axis=1),
        method="highs-ipm" if v.count > _FEW else "highs-ds",
    )
    if solved.status == _NONE_EXISTS:
        return np.inf
    return 0.0 if solved.fun is None else float(solved.fun) * (1 - _SAFETY)


def _short(memory: Memory, low: IntArray, high: IntArray) -> bool:
    """Whether some stage lacks room for all that may be in it."""
    may = [(low <= stage) & (stage <= high) for stage in range(len(memory.limit_bytes))]
    nothing = np.zeros(())
    return any(
        memory.exceeded(
            stage, memory.held_bytes[here].sum(), memory.saved_bytes[here].sum(), nothing
        )
        for stage, here in enumerate(may)
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Variables:
    """y[c, s] for s from low[c] to high[c] - 1, cluster after cluster; before it is 0, then 1."""

    low: IntArray
    high: IntArray
    first: IntArray
    """Shape [n]: the column of y[c, low[c]]."""
    cluster: IntArray
    """Shape [variables]."""
    stage: IntArray
    """Shape [variables]."""

    @staticmethod
    def of(low: IntArray, high: IntArray) -> _Variables:
        free = high - low
        first = np.cumsum(free) - free
        cluster = np.repeat(np.arange(len(free)), free)
        stage = np.arange(len(cluster)) - first[cluster] + low[cluster]
        return _Variables(low, high, first, cluster, stage)

    @property
    def count(self) -> int:
        """Columns; that of T comes after them."""
        return len(self.cluster)

    def column(self, cluster: IntArray, stage: IntArray) -> IntArray:
        """The columns of y[cluster, stage]."""
        return self.first[cluster] + stage - self.low[cluster]


def _stage_rows(
    relaxed: Relaxed, memory: Memory, target_seconds: float, v: _Variables
) -> tuple[Entries, FloatArray]:
    """Two rows a stage, its load less T and its memory as a share, and their limits [2 k]."""
    k, column = relaxed.n_stages, np.arange(v.count)
    room = np.clip(memory.limit_bytes * (1 + _SAFETY), 1.0, np.finfo(float).max)
    brought = (memory.held_bytes + memory.saved_bytes * memory.in_flight[:, None]) / room[:, None]
    taken = relaxed.work * relaxed.slowdown[:, None] / target_seconds
    rows, columns, values, limits = [np.arange(k)], [np.full(k, v.count)], [np.full(k, -1.0)], []
    for offset, figure, limit in ((0, taken, 0.0), (k, brought, 1.0)):
        for later, sign in ((0, 1.0), (1, -1.0)):  # y[c, s] is in x[c, s] and less in x[c, s + 1]
            rows.append(v.stage + later + offset)
            columns.append(column)
            values.append(sign * figure[v.stage + later, v.cluster])
        sure = figure[v.high, np.arange(len(v.high))]  # y[c, high] is 1
        limits.append(limit - np.bincount(v.high, sure, minlength=k))
    return _joined(rows, columns, values), np.concatenate(limits)


def _order_rows(relaxed: Relaxed, v: _Variables) -> Entries:
    """A row of two entries for each y[c, s - 1] <= y[c, s], and each y[b, s] <= y[a, s]."""
    within = np.flatnonzero(v.stage + 1 < v.high[v.cluster])
    a, b = relaxed.edges.T
    shared = np.maximum(v.high[a] - v.low[b], 0)
    edge = np.repeat(np.arange(len(shared)), shared)
    stage = np.arange(len(edge)) - (np.cumsum(shared) - shared)[edge] + v.low[b[edge]]
    less = np.concatenate([within, v.column(b[edge], stage)])
    more = np.concatenate([within + 1, v.column(a[edge], stage)])
    row, one = np.arange(len(less)), np.ones(len(less))
    return _joined([row, row], [less, more], [one, -one])


def _joined(rows: list[IntArray], columns: list[IntArray], values: list[FloatArray]) -> Entries:
    return np.concatenate(rows), np.concatenate(columns), np.concatenate(values)
