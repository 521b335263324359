"""Closing the gap: windows from the lower bound, then an exact search inside them."""

from __future__ import annotations

import numpy as np

from stagecut.ir.problem import IntArray, Problem
from stagecut.partitioner.bound import lower_bound
from stagecut.partitioner.downsets import Answer, best_by_downsets
from stagecut.partitioner.orders import narrowed, stage_windows
from stagecut.partitioner.search import PROVED, Search

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
        _conclude(search, answer, upper)
    return answer is not None


def close_gap(search: Search, effort: float, gap: float = 0.0) -> None:
    """Finds the optimum and proves it to within `gap`, or stops at its budgets.

    The lower bound leaves each cluster a window of stages, in any assignment that is better than
    the incumbent by more than `gap`. The best of these is searched among prefixes where they are
    few, else by integer programming. Finding none proves the incumbent within `gap` of optimal.
    `effort` scales the budget of the integer programme.
    """
    problem, target = search.problem, _upper(search) / (1 + gap)
    bound = search.bound
    if bound is None or bound.target_seconds < target:
        bound = lower_bound(
            problem, _upper(search), gap, search.out_of_time, crossings=search.crossings
        )
    if search.feasible:
        search.raise_bound(bound.seconds)
    low, high = narrowed(problem, bound.low, bound.high)
    if (low > high).any():
        _conclude(search, Answer(None, complete=True), target)
        return
    answer = best_by_downsets(problem, low, high, target * _JUST_BELOW, search.out_of_time)
    most = _MOST_VARIABLES * min(effort, 1.0)
    if answer is None and int((high - low).sum()) <= most:
        answer = _by_milp(search, low, high, target, effort, gap)
    if answer is not None:
        _conclude(search, answer, target)


def nothing_fits(search: Search) -> bool:
    """Whether the bound, counting what each stage surely holds, proves that nothing fits."""
    if not np.isfinite(search.problem.memory_limit_bytes).any():
        return False
    bound = lower_bound(
        search.problem, _upper(search), 0.0, search.out_of_time, crossings=search.crossings
    )
    search.proved_infeasible |= bool((bound.low > bound.high).any())
    return search.proved_infeasible


def _upper(search: Search) -> float:
    """What a better assignment must stay below."""
    upper = search.bottleneck_seconds
    return upper if np.isfinite(upper) else _more_than_any(search.problem)


def _by_milp(
    search: Search, low: IntArray, high: IntArray, upper: float, effort: float, gap: float = 0.0
) -> Answer | None:
    if upper <= 0:
        return None
    from stagecut.partitioner.milp import best_by_milp  # scipy.optimize is slow to import

    answer = best_by_milp(search.problem, low, high, upper, search.seconds_left, effort, gap)
    search.out_of_time()  # notes it where the solver ended at the deadline
    return answer


def _conclude(search: Search, answer: Answer, target: float) -> None:
    """Takes note of what a search below `target` seconds found and refuted."""
    if answer.assignment is not None:
        search.offer(answer.assignment, "proved" if answer.complete else "")
    elif answer.complete and not search.feasible:
        search.proved_infeasible = True
    if not search.feasible:
        return
    refuted = target if answer.complete else min(answer.refuted_seconds, target)
    search.raise_bound(min(refuted, search.bottleneck_seconds))
    if answer.complete and answer.assignment is None:
        share = search.bottleneck_seconds / target - 1
        search.confirm(f"proved: nothing is {_better(share)}")


def _better(share: float) -> str:
    return f"{share:.0%} better" if share > PROVED else "better"


def _more_than_any(problem: Problem) -> float:
    """Seconds above every assignment's bottleneck."""
    seconds = (problem.forward_seconds + problem.backward_seconds).max(axis=0).sum()
    each = problem.value_forward_bytes.sum() + problem.value_backward_bytes.sum()
    links = problem.link_latency_seconds.max() * 2 * len(problem.values)
    trips = links + problem.link_seconds_per_byte.max() * each
    sync = problem.weight_sync_seconds.sum()
    return float(seconds + trips * problem.n_stages + sync) * 1.01 + 1e-9
