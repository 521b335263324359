"""Closed forms exactly; random lists against a direct transcription of the rules."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from stagecut.ir.errors import ArgumentError, ScheduleError
from stagecut.ir.schedule import ActionList, Compute, Phase, Receive, Send, StageEdge
from stagecut.ir.timeline import EdgeCost, Reduction, Span, StepCosts, TailSpan, TransferSpan
from stagecut.partitioner.schedules import expand, in_flight, make_schedule, simulate
from tests.partitioner.schedules.random_lists import random_edges, random_schedule
from tests.partitioner.schedules.support import chain, listed, uniform_costs


def costed(seed: int) -> tuple[ActionList, StepCosts]:
    """A random valid list with random costs, whole numbers so that sums are exact."""
    random = Random(seed)
    k = random.randint(1, 6)
    edges = random_edges(random, k)
    schedule = random_schedule(random, edges, k, random.randint(1, k), random.randint(1, 4))

    def column() -> tuple[float, ...]:
        return tuple(float(random.randint(1, 9)) for _ in range(k))

    priced = tuple(
        EdgeCost(e.source, e.destination, random.randint(0, 9), random.randint(0, 9)) for e in edges
    )
    costs = StepCosts(column(), column(), column(), column(), column(), column(), column(), priced)
    return expand(schedule, edges), costs


def by_definition(action_list: ActionList, costs: StepCosts) -> dict[object, tuple[float, float]]:
    """(start, end) of each compute and message, by repeating the rules until nothing changes."""
    rows = action_list.devices
    sends, receives = order_of_posts(action_list)
    price = {(e.source, e.destination, Phase.FORWARD): e.forward_seconds for e in costs.edges}
    price |= {(e.destination, e.source, Phase.BACKWARD): e.backward_seconds for e in costs.edges}
    times: dict[object, tuple[float, float]] = {}
    while True:
        before = dict(times)
        posted: dict[object, float] = {}
        for row in rows:
            clock = 0.0
            for action in row:
                if not isinstance(action, Compute):
                    posted[action] = clock
                    continue
                needs = [m for m in receives_before(row, action) if wanted(m, action)]
                start = max([clock, *(times.get(m, (0.0, 0.0))[1] for m in needs)])
                clock = start + costs.compute_seconds(action.phase)[action.stage]
                times[action] = (start, clock)
        for messages in sends.values():
            free = 0.0
            for m in messages:
                start = max(free, posted[Send(m)], posted[Receive(m)])
                free = start + price[m.source, m.destination, m.phase]
                times[m] = (start, free)
        assert sends == receives
        if times == before:
            return times


def order_of_posts(action_list: ActionList) -> tuple[dict, dict]:
    owner = action_list.schedule.device_of_stage
    posts: tuple[dict, dict] = ({}, {})
    for row in action_list.devices:
        for action in row:
            if not isinstance(action, Compute):
                ends = owner[action.message.source], owner[action.message.destination]
                posts[isinstance(action, Receive)].setdefault(ends, []).append(action.message)
    return posts


def receives_before(row: tuple, compute: Compute) -> list:
    return [a.message for a in row[: row.index(compute)] if isinstance(a, Receive)]


def wanted(message, compute: Compute) -> bool:
    halves = {Phase.BACKWARD_INPUT: Phase.BACKWARD}
    return (message.destination, message.phase, message.microbatch) == (
        compute.stage,
        halves.get(compute.phase, compute.phase),
        compute.microbatch,
    )


@pytest.mark.parametrize("seed", range(150))
def test_times_are_those_of_the_definition(seed) -> None:
    action_list, costs = costed(seed)
    timeline = simulate(action_list, costs)
    got = {Compute(s.stage, s.phase, s.microbatch): (s.start_seconds, s.end_seconds)
           for s in timeline.spans}  # fmt: skip
    got |= {t.message: (t.start_seconds, t.end_seconds) for t in timeline.transfers}
    assert got == by_definition(action_list, costs)


@pytest.mark.parametrize("seed", range(100))
def test_the_critical_path_explains_every_second(seed) -> None:
    action_list, costs = costed(seed)
    k = action_list.schedule.n_stages
    costs = replace(costs, reductions=(Reduction((0, k - 1), 3.0), Reduction((k // 2,), 2.0)))
    timeline = simulate(action_list, costs)
    path = timeline.critical_path
    assert path[0].start_seconds == 0
    assert path[-1].end_seconds == timeline.step_seconds
    for earlier, later in pairwise(path):
        assert earlier.end_seconds == later.start_seconds
    known = {*timeline.spans, *timeline.transfers, *timeline.tail}
    assert set(path) <= known
    assert len(set(path)) == len(path)


@pytest.mark.parametrize("seed", range(60))
def test_busy_idle_and_memory_add_up(seed) -> None:
    action_list, costs = costed(seed)
    timeline = simulate(action_list, costs)
    np.testing.assert_array_equal(
        timeline.busy_seconds + timeline.idle_seconds, timeline.step_seconds
    )
    assert (timeline.idle_seconds >= 0).all()
    training = any(span.phase is not Phase.FORWARD for span in timeline.spans)
    for device, curve in enumerate(timeline.memory):
        assert (np.diff(curve.at_seconds) >= 0).all()
        assert curve.n_bytes[0] == curve.n_bytes[-1]
        assert curve.peak_bytes == peak_by_replay(action_list, costs, device, training)


def peak_by_replay(action_list, costs, device: int, training: bool) -> float:
    owner = action_list.schedule.device_of_stage
    held = static = sum(costs.static_bytes[s] for s, d in enumerate(owner) if d == device)
    peak = static
    for action in action_list.devices[device] if training else ():
        if isinstance(action, Compute):
            saved = costs.saved_bytes[action.stage]
            held += {"F": saved, "B": -saved, "I": 0, "W": -saved}[action.phase.value]
            peak = max(peak, held)
    return peak


SIZES = [(p, m) for p in (1, 2, 3, 4, 8, 13) for m in (1, 2, 7, 8, 32)]
V_SIZES = [(n, m) for n in (1, 2, 3, 4, 8) for m in (2 * n, 2 * n + 1, 5 * n)]


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_bubble_of_uniform_stages_with_free_transfers(name, p, m) -> None:
    schedule = make_schedule(name, p, p, m)
    timeline = simulate(expand(schedule, chain(p)), uniform_costs(p))
    assert timeline.step_seconds == (m + p - 1) * 3
    assert Fraction(timeline.bubble_share).limit_denominator(10**6) == Fraction(p - 1, m + p - 1)
    assert timeline.peak_bytes == tuple(10 + held for held in in_flight(schedule))


@pytest.mark.parametrize("v", [2, 3, 4])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
def test_bubble_of_interleaved(p, v) -> None:
    for m in (p, 2 * p, 5 * p):
        schedule = make_schedule("interleaved", v * p, p, m)
        timeline = simulate(expand(schedule, chain(v * p)), uniform_costs(v * p))
        assert timeline.step_seconds == (v * m + p - 1) * 3
        assert timeline.bubble_share == pytest.approx((p - 1) / (v * m + p - 1), abs=1e-12)


HALVES = [(1, 1, 1), (2, 1, 1), (2, 2, 1), (3, 2, 1), (4, 4, 1), (3, 3, 2)]


@pytest.mark.parametrize(("f", "i", "w"), [*HALVES, (1, 2, 1), (3, 4, 2)])
def test_bubble_of_zero_bubble(f, i, w) -> None:
    for p, m in ((p, m) for p, m in SIZES if m >= p):
        timeline = simulate(
            expand(make_schedule("zero_bubble", p, p, m), chain(p)), uniform_costs(p, f, i, w)
        )
        assert timeline.step_seconds == m * (f + i + w) + (p - 1) * (f + i - w)


@pytest.mark.parametrize("d", [1, 2, 3, 4, 8])
def test_zb_v_has_no_pause_between_a_device_s_first_and_last_compute(d) -> None:
    for m in (2 * d - 1, 2 * d, 5 * d):
        timeline = simulate(
            expand(make_schedule("zb_v", 2 * d, d, m), chain(2 * d)), uniform_costs(2 * d)
        )
        for device in range(d):
            mine = timeline.spans.device == device
            starts, ends = timeline.spans.start_seconds[mine], timeline.spans.end_seconds[mine]
            assert (starts[0], ends[-1]) == (device, device + 6 * m)
            assert (starts[1:] == ends[:-1]).all()


@pytest.mark.parametrize(("f", "i", "w"), HALVES)
def test_bubble_of_dualpipe_v(f, i, w) -> None:
    for d, m in V_SIZES:
        timeline = simulate(
            expand(make_schedule("dualpipe_v", 2 * d, d, m), chain(2 * d)),
            uniform_costs(2 * d, f, i, w),
        )
        assert timeline.step_seconds == 2 * m * (f + i + w) + (d - 1) * (f + i - w)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_bubble_of_inference(p, m) -> None:
    timeline = simulate(expand(make_schedule("forward", p, p, m), chain(p)), uniform_costs(p))
    assert timeline.step_seconds == m + p - 1
    assert timeline.peak_bytes == (10.0,) * p


def test_transfers_of_one_pair_of_devices_queue() -> None:
    costs = uniform_costs(2, transfer=5.0)
    action_list = listed(["0F0 0F1 0F2", "1F2 1F1 1F0"], (0, 1), 3, chain(2))
    transfers = list(simulate(action_list, costs).transfers)
    assert [(t.start_seconds, t.end_seconds) for t in transfers] == [(1, 6), (6, 11), (11, 16)]


def test_transfers_of_other_pairs_do_not_queue() -> None:
    edges = [StageEdge(0, 1, True), StageEdge(0, 2, True)]
    costs = replace(uniform_costs(3), edges=(EdgeCost(0, 1, 5.0, 0.0), EdgeCost(0, 2, 5.0, 0.0)))
    transfers = simulate(listed(["0F0", "1F0", "2F0"], (0, 1, 2), 1, edges), costs).transfers
    assert transfers.start_seconds.tolist() == [1, 1]


def test_a_transfer_waits_for_its_receive() -> None:
    # 1F0 keeps device 1 busy until 7; only then does it post the receive of micro-batch 1.
    costs = replace(uniform_costs(2, transfer=1.0), forward_seconds=(1.0, 5.0))
    timeline = simulate(expand(make_schedule("forward", 2, 2, 2), chain(2)), costs)
    assert timeline.transfers.start_seconds.tolist() == [1, 7]
    assert timeline.step_seconds == 13


@pytest.mark.parametrize("transfer", [0.25, 0.5, 1.0])
def test_receives_one_compute_ahead_hide_transfers_up_to_a_forward(transfer) -> None:
    schedule = make_schedule("gpipe", 4, 4, 16)
    early = simulate(expand(schedule, chain(4), ahead=1), uniform_costs(4, transfer=transfer))
    late = simulate(expand(schedule, chain(4)), uniform_costs(4, transfer=transfer))
    assert early.step_seconds == 57 + 6 * transfer
    assert late.step_seconds > early.step_seconds


def test_gradient_sums_and_optimizer_end_the_step() -> None:
    costs = replace(
        uniform_costs(2), optimizer_seconds=(1.0, 4.0), reductions=(Reduction((0, 1), 2.0),)
    )
    timeline = simulate(expand(make_schedule("1f1b", 2, 2, 2), chain(2)), costs)
    assert timeline.pipeline_seconds == 9
    assert timeline.tail == (
        TailSpan(0, "reduction", (0, 1), 9, 11),
        TailSpan(1, "reduction", (0, 1), 9, 11),
        TailSpan(0, "optimizer", (0,), 11, 12),
        TailSpan(1, "optimizer", (1,), 11, 15),
    )
    assert timeline.step_seconds == 15
    assert timeline.bubble_share == pytest.approx(0.3)  # (15 - 9) + (15 - 12) of 2 x 15 waited
    assert timeline.bubble_share == pytest.approx(float(timeline.idle_seconds.mean()) / 15)
    kinds = [type(step) for step in timeline.critical_path]
    assert kinds[-2:] == [TailSpan, TailSpan]
    assert set(kinds[:-2]) == {Span, TransferSpan}


def test_columns_read_as_spans() -> None:
    timeline = simulate(expand(make_schedule("1f1b", 2, 2, 1), chain(2)), uniform_costs(2))
    assert list(timeline.spans) == [
        Span(0, 0, 0, Phase.FORWARD, 0, 1),
        Span(0, 0, 0, Phase.BACKWARD, 4, 6),
        Span(1, 1, 0, Phase.FORWARD, 1, 2),
        Span(1, 1, 0, Phase.BACKWARD, 2, 4),
    ]
    assert [str(t.message) for t in timeline.transfers] == ["0>1F0", "1>0B0"]


def test_costs_must_fit() -> None:
    action_list = expand(make_schedule("1f1b", 3, 3, 2), chain(3))
    with pytest.raises(ArgumentError, match="costs of 2 stages for a schedule of 3"):
        simulate(action_list, uniform_costs(2))
    with pytest.raises(ArgumentError, match="no transfer cost for 1 -> 2"):
        simulate(action_list, replace(uniform_costs(3), edges=(EdgeCost(0, 1, 0, 0),)))


def test_a_deadlock_is_not_a_short_step() -> None:
    stuck = listed(["0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"], (0, 1), 2, chain(2))
    with pytest.raises(ScheduleError, match="stops after 1 of 8 computes"):
        simulate(stuck, uniform_costs(2))
