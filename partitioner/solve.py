"""One door to every method: `solve(problem, method)` gives an assignment with its certificate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from stagecut.ir.errors import ArgumentError
from stagecut.ir.problem import IntArray, Problem
from stagecut.ir.solution import Assignment, Solution
from stagecut.partitioner.baselines import layers, parameters, uniform
from stagecut.partitioner.bound import simple_bound
from stagecut.partitioner.certificate import FAIR, GOOD_ENOUGH, certify, halfway, quick_look
from stagecut.partitioner.dp import cut_order, least_missing_bytes
from stagecut.partitioner.exact import close_gap, close_small_gap, nothing_fits
from stagecut.partitioner.gather import gather
from stagecut.partitioner.infeasible import baseline_infeasible, check_counts, infeasible
from stagecut.partitioner.metis import metis_seeds
from stagecut.partitioner.orders import orders
from stagecut.partitioner.polish import polish, relinearise
from stagecut.partitioner.search import Search
from stagecut.partitioner.shake import shake
from stagecut.partitioner.tree import tree

_ORDERS, _POLISHED, _SEEDS, _NEAREST = 300_000, 100_000, 150_000, 5_000
"""Budgets times clusters: orders cut, cuts polished, METIS seeds, orders searched for the nearest
cut where nothing fits; one of each at least."""
_MOST_POLISHED = 3
_MOST_SEEDS, _SEEDS_TO_COMPARE = 6, 2
"""METIS seeds at most; fewer where the gap is closed already and they only show what METIS does."""
_AUTO_EFFORT, _EXACT_EFFORT = 0.05, 20.0
_MOST_CLOSINGS = 2
"""Exact searches for something better by more than a good enough gap, if the first finds it."""
_MOST_SUGGESTIONS, _WORTH_AGAIN = 4, 0.998
"""Cuts that the bound suggests, each better by this factor, after which it is computed anew."""
_PROMISING = 1.03
"""Cuts of further orders within this factor of the incumbent are worth polishing."""
_FEW_FREE = 300
"""Stage variables left free by the bound, up to which an exact search comes before a local one."""
_MOST_FREE = 1250
"""And up to which one is worth its time at all."""


def solve(problem: Problem, method: str = "auto", time_limit: float = 10.0) -> Solution:
    """Cuts `problem` by `method`.

    auto        the cheap ones, then more while the gap is above one percent
    dp, metis   orders cut optimally; recursive bisection cut again; both polished
    exact       the optimum, with its proof, as far as the budgets reach
    uniform, parameters, layers, tree     baselines: they follow pins at most, never memory

    The work is bounded by budgets that depend on the problem alone, so the same problem gives the
    same answer; `time_limit` seconds is a safety stop, and a solution it stopped says so.

    Raises:
        ArgumentError: no such method, or a time limit that is not positive.
        InfeasibleError: nothing satisfies pins, memory and counts, or nothing was found that does.
    """
    if method not in _METHODS:
        raise ArgumentError(f"no method {method!r}; the methods are {', '.join(_METHODS)}")
    if type(time_limit) not in (int, float) or not time_limit > 0:
        raise ArgumentError(f"time_limit is {time_limit!r}; give seconds above 0")
    check_counts(problem)
    search = Search(problem, time.monotonic() + time_limit)
    search.raise_bound(simple_bound(problem))
    _METHODS[method](search)
    if not search.feasible and method in _BASELINES:
        raise baseline_infeasible(method, search.faults)
    if not search.feasible:
        raise infeasible(problem, _orders_in_time(search), search.proved_infeasible, method)
    if method not in ("auto", "exact") and not search.finished(GOOD_ENOUGH):
        quick_look(search)
        certify(search)
    return search.solution()


def _auto(search: Search) -> None:
    """Cheap methods first; more only while the gap is above one percent.

    Where a quick look at the bound leaves more than a fair gap, the cut is improved before much
    work goes into proofs.
    """
    _dp(search)
    if search.proved_infeasible:
        return
    quick_look(search)
    near = search.gap <= FAIR
    if near:
        certify(search)
    if not search.finished():
        _metis(search, _SEEDS_TO_COMPARE if search.gap <= GOOD_ENOUGH else _MOST_SEEDS)
    if search.finished() or _small(search, _AUTO_EFFORT) or search.finished(GOOD_ENOUGH):
        return
    if near:
        certify(search)
        if search.free_variables() <= _FEW_FREE:
            _close(search, _AUTO_EFFORT, GOOD_ENOUGH)
    if not search.finished(GOOD_ENOUGH):
        with search.trial("search"):
            search.offer(gather(search.problem, search.incumbent, search.out_of_time))
            shake(search, GOOD_ENOUGH)
            search.confirm("nothing better found")
    _suggested(search)
    for _ in range(_MOST_CLOSINGS):
        before = search.bottleneck_seconds
        if not search.finished(GOOD_ENOUGH) and search.free_variables() <= _MOST_FREE:
            _close(search, _AUTO_EFFORT, GOOD_ENOUGH)
        if search.bottleneck_seconds == before:
            break
    halfway(search)


def _exact(search: Search) -> None:
    """The optimum, from the best of the cheap methods."""
    _dp(search)
    _metis(search)
    if not search.finished() and not _small(search, _EXACT_EFFORT):
        _close(search, _EXACT_EFFORT)


def _close(search: Search, effort: float, gap: float = 0.0) -> None:
    with search.trial("exact"):
        close_gap(search, effort, gap)


def _small(search: Search, effort: float) -> bool:
    """Solves a small problem exactly; whether it was one."""
    with search.trial("exact") as trial:
        trial.kept = close_small_gap(search, effort)
    return trial.kept


def _suggested(search: Search) -> None:
    """The bound, and the cut that it suggests, polished, while that is the better one."""
    for _ in range(_MOST_SUGGESTIONS):
        before = search.bottleneck_seconds
        certify(search)
        if search.finished(GOOD_ENOUGH) or search.bound is None or search.bound.stage is None:
            return
        with search.trial("prefixes") as trial:
            _, program = next(orders(search.problem))
            suggestion = Assignment(search.bound.stage)
            better = polish(search.problem, suggestion, program, search.out_of_time)
            search.offer(gather(search.problem, better, search.out_of_time))
            trial.kept = search.bottleneck_seconds < before
        if search.bottleneck_seconds > before * _WORTH_AGAIN:
            return


def _dp(search: Search) -> None:
    """The best cut of each named order; the best few polished."""
    with search.trial("dp"):
        cuts = list(_order_cuts(search))
        polished = min(_MOST_POLISHED, _budget(search, _POLISHED))
        for assignment, order in search.best(cuts)[:polished]:
            if not (search.out_of_time() or search.proved_infeasible):
                search.offer(polish(search.problem, assignment, order, search.out_of_time))


def _order_cuts(search: Search) -> Iterable[tuple[Assignment, IntArray]]:
    """Each named order's best cut, or where nothing fits the one that lacks the fewest bytes.

    After the first, those far above the incumbent are not worth finding. Where the first has none,
    the others are tried unless the bound proves that nothing fits.
    """
    for name, order in islice(orders(search.problem), _budget(search, _ORDERS)):
        if search.out_of_time():
            return
        cut = cut_order(search.problem, order, search.bottleneck_seconds * _PROMISING)
        if cut is not None:
            search.offer(cut, name)
            yield cut, order
        elif not search.feasible:
            missing = least_missing_bytes(search.problem, order)
            if missing:
                search.offer(missing[1], name)
                yield missing[1], order
            if name == "program" and nothing_fits(search):
                return


def _orders_in_time(search: Search) -> Iterator[IntArray]:
    """The named orders of the budget for messages; the first in any case."""
    for name, order in islice(orders(search.problem), _budget(search, _NEAREST)):
        if name == "program" or not search.out_of_time():
            yield order


def _metis(search: Search, most_seeds: int = _MOST_SEEDS) -> None:
    """METIS's recursive bisections as orders for the dynamic programme, polished."""
    problem = search.problem
    with search.trial("metis"):
        _, program = next(orders(problem))
        count = min(most_seeds, _budget(search, _SEEDS))
        for name, seed in islice(metis_seeds(problem, program), count):
            if search.out_of_time():
                return
            cut = cut_order(problem, relinearise(seed, program))
            search.offer(seed, name)
            if cut is not None:
                search.offer(cut, name)
            start = seed if cut is None else cut
            search.offer(polish(problem, start, program, search.out_of_time), name)


def _budget(search: Search, work: int) -> int:
    """How many times something of the problem's size may be done."""
    return max(1, work // search.problem.n)


def _baseline(name: str, cut: Callable[[Problem], Assignment]) -> Callable[[Search], None]:
    def run(search: Search) -> None:
        with search.trial(name):
            search.offer(cut(search.problem))

    return run


_BASELINES: dict[str, Callable[[Search], None]] = {
    "uniform": _baseline("uniform", uniform),
    "parameters": _baseline("parameters", parameters),
    "layers": _baseline("layers", layers),
    "tree": _baseline("tree", tree),
}
_METHODS: dict[str, Callable[[Search], None]] = {
    "auto": _auto,
    "dp": _dp,
    "metis": _metis,
    "exact": _exact,
    **_BASELINES,
}

METHODS = tuple(_METHODS)
"""The names that `solve` knows."""
