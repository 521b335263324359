"""Every schedule passes its checker and has the published numbers in flight."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagecut.ir.errors import ArgumentError
from stagecut.partitioner.schedules import (
    SCHEDULES,
    check,
    expand,
    folded,
    in_flight,
    make_schedule,
    simulate,
)
from tests.partitioner.schedules.support import chain, dense, uniform_costs

SIZES = [(k, m) for k in (1, 2, 3, 4, 7, 8) for m in (1, 2, 3, 4, 5, 8, 17)]
V_SIZES = [(n, m) for n in (1, 2, 3, 4, 8) for m in (2 * n, 2 * n + 1, 5 * n)]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "forward", "zero_bubble"])
@pytest.mark.parametrize("edges", [chain, dense])
def test_one_stage_a_device_passes_the_checker(name, edges) -> None:
    for k, m in SIZES:
        schedule = make_schedule(name, k, k, m)
        check(expand(schedule, edges(k)), in_flight(schedule))


@pytest.mark.parametrize("name", ["gpipe", "forward"])
def test_several_stages_a_device_pass_the_checker(name) -> None:
    for d in (1, 2, 3, 4):
        for k in range(d, 4 * d):
            for m in (1, 3, 5):
                check(expand(make_schedule(name, k, d, m), dense(k)))


@pytest.mark.parametrize("name", ["zb_v", "dualpipe_v"])
@pytest.mark.parametrize("edges", [chain, dense])
def test_two_stages_a_device_in_a_v_pass_the_checker(name, edges) -> None:
    for d, m in ((d, m) for d, m in SIZES if edges is chain or d < 5):
        schedule = make_schedule(name, 2 * d, d, m)
        check(expand(schedule, edges(2 * d)), in_flight(schedule))
        assert schedule.device_of_stage == (*range(d), *reversed(range(d)))


@pytest.mark.parametrize("v", [2, 3, 4])
@pytest.mark.parametrize("edges", [chain, dense])
def test_interleaved_passes_the_checker_for_any_number_of_micro_batches(v, edges) -> None:
    for d, m in ((d, m) for d, m in SIZES if edges is chain or d < 5):
        schedule = make_schedule("interleaved", v * d, d, m)
        check(expand(schedule, edges(v * d)), in_flight(schedule))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(1, 9))
def test_folded_passes_the_checker_for_any_placement(places, m) -> None:
    used = sorted(set(places))
    owner = [used.index(place) for place in places]
    k, d = len(owner), len(used)
    schedule = folded(owner, m)
    check(expand(schedule, dense(k)), in_flight(schedule))
    slack = d - 1 if k > d else 0
    assert all(held <= min(k - s + slack, m) for s, held in enumerate(in_flight(schedule)))


def test_folded_on_one_stage_a_device_is_as_fast_as_one_f_one_b() -> None:
    for k, m in SIZES:
        mine, theirs = (
            simulate(expand(schedule, chain(k)), uniform_costs(k)).step_seconds
            for schedule in (folded(range(k), m), make_schedule("1f1b", k, k, m))
        )
        assert mine == theirs


def test_folded_refuses_devices_without_a_stage() -> None:
    with pytest.raises(ArgumentError, match="number the devices"):
        folded((0, 2), 4)
    with pytest.raises(ArgumentError, match="0 micro-batches"):
        folded((0, 1), 0)


def test_one_f_one_b_has_min_k_minus_s_and_m_in_flight() -> None:
    for k, m in SIZES:
        expected = tuple(min(k - s, m) for s in range(k))
        assert in_flight(make_schedule("1f1b", k, k, m)) == expected


def test_gpipe_has_m_in_flight() -> None:
    for k, m in SIZES:
        assert in_flight(make_schedule("gpipe", k, k, m)) == (m,) * k


def test_zero_bubble_holds_what_the_first_stage_of_one_f_one_b_holds() -> None:
    for k, m in SIZES:
        assert in_flight(make_schedule("zero_bubble", k, k, m)) == (min(k, m),) * k


def held_by_device(schedule) -> list[int]:
    """The most micro-batches of single stages that each device holds at once."""
    peaks = []
    for computes in schedule.devices:
        held = peak = 0
        for compute in computes:
            held += {"F": 1, "B": -1, "I": 0, "W": -1}[compute.phase.value]
            peak = max(peak, held)
        peaks.append(peak)
    return peaks


def test_interleaved_holds_the_published_number() -> None:
    for d, rounds, v in product((1, 2, 3, 4, 8), (1, 2, 4), (2, 3, 4)):
        m = rounds * d
        expected = [min(2 * (d - r - 1) + (v - 1) * d + 1, v * m) for r in range(d)]
        assert held_by_device(make_schedule("interleaved", v * d, d, m)) == expected


def test_v_schedules_hold_the_published_numbers() -> None:
    for d, m in V_SIZES:
        assert held_by_device(make_schedule("zb_v", 2 * d, d, m)) == [2 * d] * d
        assert (
            held_by_device(make_schedule("dualpipe_v", 2 * d, d, m)) == [min(2 * d + 1, 2 * m)] * d
        )


def test_inference_holds_one_micro_batch() -> None:
    assert in_flight(make_schedule("forward", 4, 4, 9)) == (1, 1, 1, 1)


def test_one_f_one_b_is_the_drawn_one() -> None:
    first, middle, last = make_schedule("1f1b", 3, 3, 4).devices
    assert " ".join(map(str, first)) == "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3"
    assert " ".join(map(str, middle)) == "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3"
    assert " ".join(map(str, last)) == "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3"


DRAWN = {
    ("gpipe", 3, 3, 3): "0F0 0F1 0F2 0B0 0B1 0B2 / 1F0 1F1 1F2 1B0 1B1 1B2 / "
    "2F0 2F1 2F2 2B0 2B1 2B2",
    ("forward", 3, 3, 3): "0F0 0F1 0F2 / 1F0 1F1 1F2 / 2F0 2F1 2F2",
    ("interleaved", 4, 2, 2): "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1 / 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1",
    ("zero_bubble", 3, 3, 3): "0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2 / "
    "1F0 1F1 1I0 1F2 1I1 1W0 1I2 1W1 1W2 / 2F0 2I0 2F1 2I1 2F2 2I2 2W0 2W1 2W2",
    ("zb_v", 4, 2, 3): "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2 / "
    "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2",
    ("dualpipe_v", 4, 2, 4): "0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 "
    "0I3 0W3 / 1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3",
}


@pytest.mark.parametrize("case", DRAWN, ids=lambda case: case[0])
def test_the_drawn_table(case) -> None:
    devices = make_schedule(*case).devices
    assert " / ".join(" ".join(map(str, row)) for row in devices) == DRAWN[case]


def test_the_drawn_folded_schedule() -> None:
    rows = [" ".join(map(str, row)) for row in folded((0, 1, 0), 2).devices]
    assert rows == ["0F0 0F1 2F0 2B0 2F1 2B1 0B0 0B1", "1F0 1F1 1B0 1B1"]


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ArgumentError) as error:
        make_schedule("1b1f", 2, 2, 4)
    assert all(name in str(error.value) for name in SCHEDULES)


@pytest.mark.parametrize(
    ("name", "numbers", "words"),
    [
        ("1f1b", (0, 0, 1), "0 stages, 0 devices"),
        ("1f1b", (2, 2, 0), "0 micro-batches"),
        ("1f1b", (2, 4, 8), "use 2 devices"),
        ("1f1b", (4, 2, 8), "interleaved"),
        ("interleaved", (4, 4, 8), "8 stages"),
        ("interleaved", (5, 2, 8), "4 stages"),
        ("zero_bubble", (4, 2, 8), "zb_v"),
        ("zb_v", (6, 2, 8), "4 stages"),
        ("dualpipe_v", (2, 2, 8), "4 stages"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(name, numbers, words) -> None:
    with pytest.raises(ArgumentError, match=words):
        make_schedule(name, *numbers)
