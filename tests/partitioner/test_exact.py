from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagecut.ir.errors import InfeasibleError
from stagecut.partitioner import bound as bounds
from stagecut.partitioner import relaxed
from stagecut.partitioner.bound import lower_bound, simple_bound
from stagecut.partitioner.chains import ChainBound
from stagecut.partitioner.evaluate import evaluate
from stagecut.partitioner.milp import best_by_milp
from stagecut.partitioner.solve import solve
from tests.partitioner import oracle
from tests.partitioner.problems import problem, random_problem

seeds = st.integers(0, 10**6)


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 6), st.integers(1, 3))
def test_exact_equals_brute_force(seed, n, k):
    p = random_problem(seed, n, k)
    best = oracle.optimum(p)
    if not np.isfinite(best):
        with pytest.raises(InfeasibleError):
            solve(p, "exact")
        return
    solution = solve(p, "exact")
    assert solution.evaluation.bottleneck_seconds == pytest.approx(best, rel=1e-6, abs=1e-9)
    assert solution.optimal
    assert not solution.evaluation.faults


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 6), st.integers(2, 3), st.floats(0.7, 2.0))
def test_the_bound_is_never_above_the_optimum(seed, n, k, factor):
    p = random_problem(seed, n, k)
    best = oracle.optimum(p)
    if not np.isfinite(best):
        return
    assert simple_bound(p) <= best
    bound = lower_bound(p, best * factor, 0.0, lambda: False)
    assert bound.seconds <= best * (1 + 1e-12)
    if factor > 1.0001:
        windows = zip(bound.low, bound.high, strict=True)
        windows = list(windows)
        for stage in oracle.valid_assignments(p):
            if max(oracle.loads(p, stage)) < best * factor * (1 - 1e-7):
                inside = zip(windows, stage, strict=True)
                assert all(low <= s <= high for (low, high), s in inside)


def test_the_bound_holds_with_a_price_for_every_stage(monkeypatch):
    monkeypatch.setattr(relaxed, "_MOST_PRICES", 99)
    several = 0
    for seed in range(50):
        p = random_problem(seed, 5, 3)
        best = oracle.optimum(p)
        if not np.isfinite(best) or not np.ptp(p.link_seconds_per_byte):
            continue
        several += 1
        for factor in (0.8, 1.0, 1.3):
            assert lower_bound(p, best * factor, 0.0, lambda: False).seconds <= best * (1 + 1e-12)
    assert several > 8


def test_a_slow_link_between_nodes_raises_the_bound():
    """Two nodes of two: whatever crosses from the first to the second pays the slow link."""
    node = np.arange(4) // 2
    links = np.where(node[:, None] == node, 0.1, 3.0)
    p = problem(4, [1.0] * 40, [(c, c + 1) for c in range(39)], [((c, c + 1), 1.0) for c in
                range(39)], link_seconds_per_byte=links)  # fmt: skip
    best = solve(p, "exact").evaluation.bottleneck_seconds
    assert lower_bound(p, best, 0.0, lambda: False).seconds == pytest.approx(best, rel=1e-3)
    fast = replace(p, link_seconds_per_byte=np.full((4, 4), 0.1))
    assert lower_bound(fast, best, 0.0, lambda: False).seconds < best * 0.9


def test_windows_raise_what_surely_crosses(monkeypatch):
    """The first cluster's value is used all along: in the last stage it comes from the first node.

    Its cheapest link is that from the stage before; only the windows tell that it does not.
    """
    node = np.arange(4) // 2
    links = np.where(node[:, None] == node, 0.1, 3.0)
    edges = [(c, c + 1) for c in range(79)] + [(0, c) for c in range(2, 80)]
    p = problem(4, [0.5] * 80, edges, [((0, *range(1, 80)), 1.0)], link_seconds_per_byte=links)
    best = solve(p, "dp").evaluation.bottleneck_seconds
    monkeypatch.setattr(
        bounds, "chain_bound", lambda p, r, target, low, high, *_: ChainBound(0.0, low, high)
    )
    raised = lower_bound(p, best, 0.05, lambda: False).seconds
    monkeypatch.setattr(relaxed, "_MOST_RAISABLE", 0)
    assert raised > lower_bound(p, best, 0.05, lambda: False).seconds * 1.03
    assert raised <= best


def memory_decides(n_layers=40, k=4, limit=30.0):
    """A chain whose first stages have many micro-batches in flight and so must be short."""
    n = n_layers
    return problem(
        k, [1.0] * n, [(c, c + 1) for c in range(n - 1)],
        saved=[([c], 1.0) for c in range(n)], in_flight=list(range(k, 0, -1)),
        memory_limit_bytes=np.full(k, limit),
    )  # fmt: skip


def test_the_bound_counts_what_a_stage_surely_holds():
    """7 and 10 layers fit in the first two stages; one of the other two has 12 of the 40."""
    p = memory_decides(limit=30.0)
    found = solve(p, "dp").evaluation.bottleneck_seconds
    assert found == pytest.approx(solve(p, "exact").evaluation.bottleneck_seconds)
    assert lower_bound(p, found, 0.0, lambda: False).seconds == pytest.approx(found, rel=1e-4)
    assert found == pytest.approx(12.1)
    free = replace(p, memory_limit_bytes=np.full(4, np.inf))
    assert lower_bound(free, found, 0.0, lambda: False).seconds < found * 0.95


def test_the_bound_proves_that_nothing_fits():
    """6 layers fit in the last stage, 3, 2 and 1 before it: 12 of 13, in whichever order."""
    p = memory_decides(13, 4, 6.9)
    with pytest.raises(InfeasibleError, match="Proved: no assignment fits"):
        solve(p)
    assert not solve(memory_decides(12, 4, 6.9)).evaluation.faults


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 5), st.integers(1, 3))
def test_the_integer_programme_equals_brute_force(seed, n, k):
    p = random_problem(seed, n, k)
    best = oracle.optimum(p)
    low, high = np.where(p.pins < 0, 0, p.pins), np.where(p.pins < 0, k - 1, p.pins)
    if not np.isfinite(best) or best == 0:
        return
    answer = best_by_milp(p, low, high, best * 1.5, lambda: 60.0)
    assert answer.complete
    reached = evaluate(p, answer.assignment).bottleneck_seconds
    assert reached == pytest.approx(best, rel=1e-6)
    assert best_by_milp(p, low, high, best, lambda: 60.0).assignment is None


@pytest.mark.parametrize("seed", range(12))
def test_exact_on_larger_graphs(seed):
    p = random_problem(seed, 8, 3)
    best = oracle.optimum(p)
    if np.isfinite(best):
        assert solve(p, "exact").evaluation.bottleneck_seconds == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_units_do_not_matter(scale):
    p = problem(2, [3 * scale, 1 * scale, 2 * scale, 4 * scale], [(0, 1), (1, 2), (2, 3)],
                [((c, c + 1), 0.5 * scale) for c in range(3)])  # fmt: skip
    solution = solve(p, "exact")
    assert solution.evaluation.bottleneck_seconds == pytest.approx(6.5 * scale)
    assert solution.optimal


@settings(max_examples=50, deadline=None)
@given(seeds, st.integers(1, 6), st.integers(1, 3), st.sampled_from(("auto", "dp", "metis")))
def test_answers_are_valid_and_never_better_than_the_optimum(seed, n, k, method):
    p = random_problem(seed, n, k)
    best = oracle.optimum(p)
    try:
        solution = solve(p, method)
    except InfeasibleError:
        assert method != "auto" or not np.isfinite(best)
        return
    assert oracle.valid(p, solution.assignment.stage)
    assert solution.evaluation.bottleneck_seconds >= best * (1 - 1e-9)
    assert solution.lower_bound_seconds <= best * (1 + 1e-9)
    if method == "auto":
        assert solution.evaluation.bottleneck_seconds <= best * 1.01


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(1, 5), st.integers(2, 4), st.sampled_from([0.0, 30.0, 60.0]))
def test_stages_that_may_stay_empty(seed, n, k, limit):
    draw = np.random.default_rng(seed)
    edges = [(a, b) for b in range(n) for a in range(b) if draw.random() < 0.4]
    values = [((a, b), float(draw.integers(0, 40))) for a, b in edges]
    p = problem(k, draw.integers(0, 30, n).tolist(), edges, values, send_rule="once",
                allow_empty=True, weights=[([c], float(draw.integers(5, 20))) for c in range(n)],
                memory_limit_bytes=np.full(k, limit or np.inf))  # fmt: skip
    best = oracle.optimum(p)
    if not np.isfinite(best):
        return
    solution = solve(p, "exact")
    assert solution.optimal
    assert solution.evaluation.bottleneck_seconds == pytest.approx(best, rel=1e-9)


def test_the_time_limit_is_kept_on_a_large_problem():
    """3,700 clusters, 16 stages, tight memory; wide, so that no method ends soon by itself."""
    n, k = 3700, 16
    draw = np.random.default_rng(0)
    near = np.maximum(np.arange(n) - 1 - draw.integers(0, 9, n), 0).tolist()
    edges = sorted({(a, b) for b in range(1, n) for a in (near[b], b // 2)})
    sizes = [([c], float(size)) for c, size in enumerate(draw.uniform(0, 2, n))]
    p = problem(
        k, draw.uniform(0, 2, n).tolist(), edges, [(pair, 0.1) for pair in edges],
        weights=sizes, saved=sizes, in_flight=list(range(k, 0, -1)),
        memory_limit_bytes=np.full(k, 3000.0), send_rule="per_consumer",
    )  # fmt: skip
    started = time.monotonic()
    solution = solve(p, "auto", 1.0)
    assert solution.stopped_by_clock
    assert time.monotonic() - started < 4.0
    assert not solution.evaluation.faults


def test_auto_proves_small_problems_though_they_are_good_enough():
    """The bound leaves 0.1 percent; there are only a few assignments to look at."""
    edges, values = [(1, 3)], [((1, 3), 0.0301)]
    p = problem(4, [3.0, 7.0, 5.0, 1.0], edges, values)
    assert lower_bound(p, 7.0301, 0.0, lambda: False).seconds < 7.0301 * (1 - 5e-4)
    assert solve(p, "auto").optimal


@pytest.mark.parametrize("scale", [1e-9, 1.0, 2.0000013444675128e15])
@pytest.mark.parametrize("method", ["auto", "exact", "dp"])
def test_no_bound_is_above_its_bottleneck_by_rounding(method, scale):
    for figures in ([0.6, 0.6, 0.6], [1 / 3, 1 / 7, 1 / 9, 0.1], [0.7, 0.1, 0.2, 1.1, 0.3]):
        n = len(figures)
        seconds = [figure * scale for figure in figures]
        p = problem(2, seconds, [(c, c + 1) for c in range(n - 1)], [])
        found = solve(p, method)
        assert found.lower_bound_seconds <= found.evaluation.bottleneck_seconds
