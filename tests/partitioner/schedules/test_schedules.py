"""Every schedule passes its checker and has the published numbers in flight."""

from __future__ import annotations

import pytest

from stagecut.ir.errors import ArgumentError
from stagecut.partitioner.schedules import SCHEDULES, check, expand, in_flight, make_schedule
from tests.partitioner.schedules.support import chain, dense

SIZES = [(k, m) for k in (1, 2, 3, 4, 7, 8) for m in (1, 2, 3, 4, 5, 8, 17)]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "forward"])
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


def test_one_f_one_b_has_min_k_minus_s_and_m_in_flight() -> None:
    for k, m in SIZES:
        expected = tuple(min(k - s, m) for s in range(k))
        assert in_flight(make_schedule("1f1b", k, k, m)) == expected


def test_gpipe_has_m_in_flight() -> None:
    for k, m in SIZES:
        assert in_flight(make_schedule("gpipe", k, k, m)) == (m,) * k


def test_inference_holds_one_micro_batch() -> None:
    assert in_flight(make_schedule("forward", 4, 4, 9)) == (1, 1, 1, 1)


def test_one_f_one_b_is_the_drawn_one() -> None:
    first, middle, last = make_schedule("1f1b", 3, 3, 4).devices
    assert " ".join(map(str, first)) == "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3"
    assert " ".join(map(str, middle)) == "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3"
    assert " ".join(map(str, last)) == "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3"


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ArgumentError) as error:
        make_schedule("1b1f", 2, 2, 4)
    assert all(name in str(error.value) for name in SCHEDULES)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((0, 0, 1), "0 stages, 0 devices"),
        ((2, 2, 0), "0 micro-batches"),
        ((2, 4, 8), "use 2 devices"),
        ((4, 2, 8), "interleaved"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(numbers, words) -> None:
    with pytest.raises(ArgumentError, match=words):
        make_schedule("1f1b", *numbers)
