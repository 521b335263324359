"""Closing the gap: windows from the lower bound, then an exact search inside them."""

from __future__ import annotations

import numpy as np

from stagecut.ir.problem import IntArray, Problem
from stagecut.partitioner.bound import binned_bound
from stagecut.partitioner.downsets import Answer, best_by_downsets
from stagecut.partitioner.orders import narrowed, stage_windows
from stagecut.partitioner.search import Search

_FEW_PREFIXES = 4000
"""Graphs whose prefixes times stages are no more than this need no windows."""
_FEW_VARIABLES = 60
_MOST_VARIABLES = 25_000
"""Free stage variables (cluster, stage) that the integer programme is tried with, at effort 1 or
more; in proportion below, since a single node of a large programme may take a minute."""
_JUST_BELOW = 1 - 1e-9


def close_small_gap(search: Search, effort: float) -> bool:
    """Solves problems exactly that are small without windows; whether this one was."""
    upper = _upper(search)
    low, high = stage_windows(search.problem)
    if (low > high).any():
        return False
    below = upper * _JUST_BELOW
    most = _FEW_PREFIXES // search.problem.n_stages
    answer = best_by_downsets(search.problem, low, high, below, search.out_of_time, most)
    if answer is None and int((high - low).sum()) <= _FEW_VARIABLES:
        answer = _by_milp(search, low, high, upper, effort)
    if answer is not None:
        _conclude(search, answer)
    return answer is not None


def close_gap(search: Search, effort: float) -> None:
    """Finds the optimum and proves it, or stops at its budgets.

    The lower bound for the incumbent leaves each cluster a window of stages; the best assignment in
    the windows that beats the incumbent is searched among prefixes where those are few, else by
    integer programming. Finding none proves the incumbent optimal. `effort` scales the budget of
    the integer programme.
    """
    problem, upper = search.problem, _upper(search)
    bound = search.bound or binned_bound(problem, upper, 0.0, search.out_of_time)
    if search.feasible:
        search.raise_bound(bound.seconds)
    low, high = narrowed(problem, bound.low, bound.high)
    if (low > high).any():
        _conclude(search, Answer(None, complete=True))
        return
    answer = best_by_downsets(problem, low, high, upper * _JUST_BELOW, search.out_of_time)
    most = _MOST_VARIABLES * min(effort, 1.0)
    if answer is None and int((high - low).sum()) <= most:
        answer = _by_milp(search, low, high, upper, effort)
    if answer is not None:
        _conclude(search, answer)


def nothing_fits(search: Search) -> bool:
    """Whether the bound, counting what each stage surely holds, proves that nothing fits."""
    if not np.isfinite(search.problem.memory_limit_bytes).any():
        return False
    bound = binned_bound(search.problem, _upper(search), 0.0, search.out_of_time)
    search.proved_infeasible |= bool((bound.low > bound.high).any())
    return search.proved_infeasible


def _upper(search: Search) -> float:
    """What a better assignment must stay below."""
    upper = search.bottleneck_seconds
    return upper if np.isfinite(upper) else _more_than_any(search.problem)


def _by_milp(
    search: Search, low: IntArray, high: IntArray, upper: float, effort: float
) -> Answer | None:
    if upper <= 0:
        return None
    from stagecut.partitioner.milp import best_by_milp  # scipy.optimize is slow to import

    answer = best_by_milp(search.problem, low, high, upper, search.seconds_left, effort)
    search.out_of_time()  # notes it where the solver ended at the deadline
    return answer


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
