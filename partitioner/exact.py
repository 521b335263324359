"""Closing the gap: windows from the lower bound, then an exact search inside them."""

from __future__ import annotations

import numpy as np

from stagecut.ir.problem import IntArray, Problem
from stagecut.partitioner.bound import binned_bound
from stagecut.partitioner.downsets import Answer, best_by_downsets
from stagecut.partitioner.orders import precedence
from stagecut.partitioner.search import Search

_FEW_PREFIXES = 1500
"""Graphs with no more prefixes than this need no windows."""
_FEW_VARIABLES = 60
_LARGEST = 60_000
"""Free stage variables (cluster, stage) above which the integer programme is not tried."""


def close_gap(search: Search) -> None:
    """Finds the optimum and proves it, or stops at its budgets.

    The lower bound for the incumbent leaves each cluster a window of stages; the best assignment in
    the windows that beats the incumbent is searched among prefixes where those are few, else by
    integer programming. Finding none proves the incumbent optimal.
    """
    problem = search.problem
    upper = search.bottleneck_seconds
    if not np.isfinite(upper):
        upper = _more_than_any(problem)
    anywhere = np.zeros(problem.n, dtype=np.int64)
    low, high = _within_pins(problem, anywhere, anywhere + problem.n_stages - 1)
    just_below = upper * (1 - 1e-9)
    answer = best_by_downsets(problem, low, high, just_below, search.out_of_time, _FEW_PREFIXES)
    if answer is None and int((high - low).sum()) <= _FEW_VARIABLES:
        answer = _by_milp(search, low, high, upper)
    if answer is not None:
        _conclude(search, answer)
        return
    bound = binned_bound(problem, upper, 0.0, search.out_of_time)
    if search.feasible:
        search.raise_bound(bound.seconds)
    low, high = _within_pins(problem, bound.low, bound.high)
    if (low > high).any():
        _conclude(search, Answer(None, complete=True))
        return
    answer = best_by_downsets(problem, low, high, just_below, search.out_of_time)
    if answer is None and int((high - low).sum()) <= _LARGEST:
        answer = _by_milp(search, low, high, upper)
    if answer is not None:
        _conclude(search, answer)


def _by_milp(search: Search, low: IntArray, high: IntArray, upper: float) -> Answer:
    from stagecut.partitioner.milp import best_by_milp  # scipy.optimize is slow to import

    return best_by_milp(search.problem, low, high, upper, search.seconds_left())


def _conclude(search: Search, answer: Answer) -> None:
    if answer.assignment is not None:
        search.offer(answer.assignment, "proved" if answer.complete else "")
    if answer.complete and search.feasible:
        search.raise_bound(search.bottleneck_seconds)
        search.confirm("proved: nothing better exists")
    elif answer.complete:
        search.proved_infeasible = True


def _more_than_any(problem: Problem) -> float:
    """Seconds above every assignment's bottleneck."""
    seconds = (problem.forward_seconds + problem.backward_seconds).max(axis=0).sum()
    each = problem.value_forward_bytes.sum() + problem.value_backward_bytes.sum()
    links = problem.link_latency_seconds.max() * 2 * len(problem.values)
    trips = links + problem.link_seconds_per_byte.max() * each
    sync = problem.weight_sync_seconds.sum()
    return float(seconds + trips * problem.n_stages + sync) * 1.01 + 1e-9


def _within_pins(problem: Problem, low: IntArray, high: IntArray) -> tuple[IntArray, IntArray]:
    """The windows, narrowed by the pins and along the edges."""
    pins = problem.pins
    low = np.where(pins >= 0, np.maximum(low, pins), low)
    high = np.where(pins >= 0, np.minimum(high, pins), high)
    first, last = low.tolist(), high.tolist()
    graph = precedence(problem)
    cluster = graph.cluster.tolist()
    for node in range(len(graph)):
        for before in graph.predecessors[node]:
            a, b = cluster[before], cluster[node]
            if a >= 0 and b >= 0:
                first[b] = max(first[b], first[a])
    for node in reversed(range(len(graph))):
        for after in graph.successors[node]:
            a, b = cluster[node], cluster[after]
            if a >= 0 and b >= 0:
                last[a] = min(last[a], last[b])
    return np.asarray(first), np.asarray(last)
