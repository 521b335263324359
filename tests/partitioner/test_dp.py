from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagecut.ir.errors import InfeasibleError
from stagecut.ir.problem import Incidence, Relief
from stagecut.ir.solution import Assignment
from stagecut.partitioner import dp
from stagecut.partitioner.dp import cut_order, least_missing_bytes, relieved_cut
from stagecut.partitioner.evaluate import evaluate
from stagecut.partitioner.intervals import Grid, LinearOrder, Rectangles, Spans, range_maximum
from stagecut.partitioner.orders import orders
from stagecut.partitioner.relief import lacks_memory
from tests.partitioner import oracle
from tests.partitioner.problems import chain, problem, random_problem

seeds = st.integers(0, 10**6)


@given(seeds, st.integers(2, 7), st.integers(1, 3))
def test_equals_the_best_contiguous_cut_of_its_order(seed, n, k):
    p = random_problem(seed, n, min(k, n))
    exact = p.send_rule == "once" and np.ptp(p.link_seconds_per_byte) == 0
    if not exact or p.allow_empty or (p.pins >= 0).any():
        return
    for _, order in orders(p):
        cut = cut_order(p, order)
        cuts = [s for s in oracle.contiguous(p, order) if oracle.valid(p, s)]
        assert (cut is None) == (not cuts)
        if cut is not None:
            least = min(max(oracle.loads(p, s)) for s in cuts)
            assert evaluate(p, cut).bottleneck_seconds == pytest.approx(least, rel=1e-9)


@given(seeds, st.integers(1, 6), st.integers(1, 3))
def test_is_valid_and_never_better_than_brute_force(seed, n, k):
    p = random_problem(seed, n, k)
    best = oracle.optimum(p)
    for order in _orders(p):
        cut = cut_order(p, order)
        if cut is not None:
            scored = evaluate(p, cut)
            assert not scored.faults
            assert scored.bottleneck_seconds >= best * (1 - 1e-9)


@given(seeds, st.integers(1, 12), st.integers(0, 6))
def test_grid_costs_equal_counting(seed, n, items):
    draw = np.random.default_rng(seed)
    members = [sorted(set(draw.integers(0, n, 4).tolist())) for _ in range(items)]
    amount, figure = draw.uniform(1, 2, items), draw.uniform(1, 2, n)
    heads = np.asarray([each[0] for each in members], dtype=np.int64)
    spans = Spans.of(Incidence.of(members), np.arange(n))
    candidates = np.unique([0, n, *draw.integers(0, n + 1, 4)])
    ends, starts = (_some(draw, len(candidates)) for _ in range(2))
    parts = Rectangles.touched(spans, candidates), Rectangles.contained(spans, candidates)
    parts = *parts, Rectangles.holding(heads, candidates)
    sums = []
    for part in parts:
        grid = Grid(ends, starts)
        part.add_to(grid, amount)
        sums.append(grid.sum())
    grid = Grid(ends, starts)
    Rectangles.all_of(parts, [items] * 3).add_to(grid, np.concatenate([amount, amount, -amount]))
    assert grid.sum() == pytest.approx(sums[0] + sums[1] - sums[2])
    largest = range_maximum(figure, candidates[ends], candidates[starts])
    for i, left in enumerate(candidates[starts]):
        for j, right in enumerate(candidates[ends]):
            inside = set(range(left, right))
            if not inside:
                continue
            touched, contained, held = (each[j, i] for each in sums)
            some = sum(amount[m] for m in range(items) if inside & set(members[m]))
            every = sum(amount[m] for m in range(items) if inside >= set(members[m]))
            assert touched == pytest.approx(some)
            assert contained == pytest.approx(every)
            assert held == pytest.approx(sum(amount[np.isin(heads, list(inside))]))
            assert largest[j, i] == max(figure[c] for c in inside)


def _some(draw, count):
    """A slice of at least one of `count`."""
    start = int(draw.integers(0, count))
    return slice(start, int(draw.integers(start + 1, count + 1)))


def test_long_orders_are_refined_to_the_exact_cut(monkeypatch):
    p = chain(700, 5)
    exact = evaluate(p, cut_order(p, np.arange(700)))
    monkeypatch.setattr(dp, "_MANY", 240)
    coarse = evaluate(p, cut_order(p, np.arange(700)))
    assert coarse.bottleneck_seconds <= exact.bottleneck_seconds * 1.001


@pytest.mark.parametrize("seed", range(6))
def test_windows_and_blocks_lose_nothing(seed, monkeypatch):
    p, order = random_problem(seed, 300, 5, density=0.01), np.arange(300)
    p = replace(p, memory_limit_bytes=np.full(5, np.inf), pins=np.full(300, -1), send_rule="once")
    if seed % 2:
        needed = evaluate(p, cut_order(p, order)).memory_bytes.max()
        p = replace(p, memory_limit_bytes=np.full(5, needed * 0.98))
    windows = cut_order(p, order)
    monkeypatch.setattr(dp, "_FEW", 400)
    assert (windows.stage == cut_order(p, order).stage).all()
    least = dp._best_cut(LinearOrder.of(p, order), dp.StageCosts).bottleneck
    assert (cut_order(p, order, least).stage == windows.stage).all()
    assert cut_order(p, order, least * 0.999) is None


def test_among_equal_bottlenecks_the_least_transfer_wins():
    seconds = [9.0, 1, 1, 1, 1, 1]
    costs = [9.0, 0.5, 0.2, 0.5, 0.5]
    values = [((c, c + 1), cost) for c, cost in enumerate(costs)]
    p = problem(2, seconds, [(c, c + 1) for c in range(5)], values)
    best = min(
        (max(oracle.loads(p, s)), sum(oracle.loads(p, s))) for s in oracle.contiguous(p, range(6))
    )
    found = oracle.loads(p, cut_order(p, np.arange(6)).stage.tolist())
    assert (max(found), sum(found)) == pytest.approx(best)


def test_memory_counts_micro_batches_in_flight_by_position():
    saved = [([c], 1.0) for c in range(4)]
    p = problem(2, [1, 1, 1, 1], saved=saved, in_flight=[2, 1], memory_limit_bytes=[2.0, 9.0])
    assert cut_order(p, np.arange(4)).stage.tolist() == [0, 1, 1, 1]


def test_least_missing_bytes_is_the_room_that_would_work():
    p = problem(2, [1, 1, 1], weights=[([c], 5.0) for c in range(3)], memory_limit_bytes=[7.0, 7.0])
    assert cut_order(p, np.arange(3)) is None
    missing, nearest = least_missing_bytes(p, np.arange(3))
    assert missing == pytest.approx(3)
    assert evaluate(p, nearest).memory_bytes.max() == 10


def test_the_faster_device_takes_more():
    p = problem(
        2, [1] * 6, forward_seconds=[[1.0] * 6, [2.0] * 6], backward_seconds=np.zeros((2, 6)),
        device_kind=[0, 1],
    )  # fmt: skip
    assert cut_order(p, np.arange(6)).stage.tolist() == [0, 0, 0, 0, 1, 1]


def test_live_counts_what_crosses():
    p = problem(2, [1, 1, 1], [(0, 1), (0, 2)], [((0, 1, 2), 5.0), ((1, 2), 3.0)])
    line = LinearOrder.of(p, np.arange(3))
    assert line.live(p.value_forward_bytes).tolist() == [0, 5, 8, 0]


def _orders(p):
    try:
        return [order for _, order in orders(p)]
    except InfeasibleError as conflict:
        assert "pinned to stage" in str(conflict)
        return []


def test_assignment_lists_the_stages():
    cut = dp.Cut(np.asarray([0, 1, 3]), 0.0, 0.0)
    assert isinstance(cut.assignment(np.asarray([2, 0, 1])), Assignment)
    assert cut.assignment(np.asarray([2, 0, 1])).stage.tolist() == [1, 1, 0]


@given(seeds, st.integers(1, 7), st.integers(1, 3))
def test_weighs_memory_bought_with_time_as_brute_force_does(seed, n, k):
    draw = np.random.default_rng(seed)
    k = min(k, n)
    p = problem(
        k, draw.uniform(1, 3, n).tolist(), [(c, c + 1) for c in range(n - 1)],
        saved=[([c], float(size)) for c, size in enumerate(draw.uniform(1, 4, n))],
        in_flight=list(range(k, 0, -1)),
        memory_limit_bytes=draw.uniform(4, 20, k),
        send_rule="once",
    )  # fmt: skip
    relief = Relief(
        draw.uniform(0, 2, (1, n)), draw.uniform(0.1, 3, n), draw.uniform(0, 1, n),
        float(draw.choice([0.0, 1.0])),
    )  # fmt: skip
    order = np.arange(n)
    costs = [max(_relieved_loads(p, relief, s)) for s in oracle.contiguous(p, order)]
    least = min(costs, default=np.inf)
    cut = relieved_cut(p, order, relief)
    assert (cut.bottleneck if cut else np.inf) == pytest.approx(least, rel=1e-9)


def _relieved_loads(p, relief, stage):
    memory, found = oracle.memory(p, stage), []
    for s, load in enumerate(oracle.loads(p, stage)):
        mine = [c for c in range(p.n) if stage[c] == s]
        lacking = memory[s] - p.memory_limit_bytes[s]
        if lacking > 0:
            needed = (lacking + max(relief.replay_bytes[mine])) / p.in_flight[s]
            most = relief.freed_bytes[mine].sum()
            if needed > most:
                load = np.inf
            else:
                grain = relief.grain_bytes
                freed = min(np.ceil(needed / grain) * grain, most) if grain else needed
                load += relief.seconds[0][mine].sum() * freed / most
        found.append(load)
    return found


@given(seeds, st.integers(1, 6), st.integers(1, 3))
def test_counting_proves_only_what_is_so(seed, n, k):
    p = random_problem(seed, n, k)
    limit = float(np.random.default_rng(seed).uniform(0, 9))
    tight = replace(p, memory_limit_bytes=np.full(k, limit))
    if lacks_memory(tight):
        assert not any(True for _ in oracle.valid_assignments(tight))


def test_counting_puts_weights_where_most_is_in_flight():
    line = [(c, c + 1) for c in range(3)]
    p = problem(
        2, [1] * 4, line, weights=[([c], 1.0) for c in range(4)], in_flight=[4, 1],
        saved=[([c], 2.0) for c in range(4)], memory_limit_bytes=[4.0, 8.0],
    )  # fmt: skip
    assert not lacks_memory(p)
    assert lacks_memory(replace(p, memory_limit_bytes=np.array([4.0, 7.9])))
    assert lacks_memory(replace(p, memory_limit_bytes=np.array([1.0, 2.0])))
