"""Each way to break a list is refused, by the right rule, with the place drawn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stagecut.ir.errors import ScheduleError
from stagecut.ir.schedule import StageEdge
from stagecut.partitioner.schedules import check, expand, in_flight, make_schedule
from tests.partitioner.schedules.random_lists import rebuilt
from tests.partitioner.schedules.support import chain, edited, listed

LIST = expand(make_schedule("1f1b", 3, 3, 4), [*chain(3), StageEdge(0, 2, True)])


def refusal(action_list, limit=None) -> str:
    with pytest.raises(ScheduleError) as error:
        check(action_list, limit)
    return str(error.value)


def broken(device: int, old: str, new: str) -> str:
    """The refusal of the list with one row edited, its schedule following along."""
    return refusal(rebuilt(LIST, [list(row) for row in edited(LIST, device, old, new).devices]))


@pytest.mark.parametrize(
    ("device", "old", "new", "rule", "reason"),
    [
        (0, "0F3", "", "completeness", "0F3 never runs"),
        (1, "1B2", "", "completeness", "1B2 never runs, nor do its halves 1I2 and 1W2"),
        (1, "1B2", "1I2", "completeness", "1I2 runs without 1W2"),
        (1, "1B2", "1W2", "completeness", "1W2 runs without 1I2"),
        (1, "1B2", "1B2 1W2", "completeness", "1B2 runs, and so does its half 1W2"),
        (0, "0F3", "0F3 0F3", "completeness", "0F3 runs 2 times"),
        (0, "0F3", "0F3 2F3", "placement", "stage 2 is on device 2"),
        (0, "0F3", "0F3 0F4", "placement", "there is no micro-batch 4 among 4"),
        (0, "0F3", "0F3 7F0", "placement", "there is no stage 7"),
        (0, "0>1F3!", "1>2F3!", "placement", "stage 1 is on device 1"),
        (2, "2F0 2B0", "2B0 2F0", "order", "2B0 stands before 2F0"),
        (1, "1B2", "1W2 1I2", "order", "1W2 stands before 1I2"),
        (0, "0>1F3!", "", "messages", "0>1F3 is never sent"),
        (1, "0>1F3?", "", "messages", "0>1F3 is never received"),
        (0, "0>1F3!", "0>1F3! 0>1F3!", "messages", "0>1F3 is sent 2 times"),
        (1, "0>1F3?", "0>1F3? 0>1F3?", "messages", "0>1F3 is received 2 times"),
        (0, "0>1F3!", "0>1F3! 0>1B3!", "messages", "0>1B3 is sent, and no edge or compute"),
        (0, "0F0 0>1F0!", "0>1F0! 0F0", "messages", "0>1F0 is sent before it is computed"),
        (1, "0>1F0? 1F0", "1F0 0>1F0?", "messages", "0>1F0 is received after it is needed"),
        (0, "0F0 0>1F0! 0>2F0! 0F1 0>1F1!", "0F0 0>2F0! 0F1 0>1F1! 0>1F0!", "channels",
         "device 0 sends 0>1F1 where device 1 receives 0>1F0"),
    ],
)  # fmt: skip
def test_a_fault_is_named_by_its_rule(device, old, new, rule, reason) -> None:
    text = broken(device, old, new)
    assert f"(rule: {rule})" in text
    assert reason in text
    assert "[" in text, "no mark in the grid"


def test_a_list_that_leaves_its_schedule_is_refused() -> None:
    text = refusal(edited(LIST, 1, "1B0 1>0B0! 0>1F2? 1F2 1>2F2!", "0>1F2? 1F2 1>2F2! 1B0 1>0B0!"))
    assert "(rule: agreement)" in text
    assert "device 1 computes something else" in text


def test_a_cycle_of_waits_is_a_deadlock() -> None:
    check(listed(["0F0 0F1 0B0 0B1", "1F1 1B1 1F0 1B0"], (0, 1), 2, chain(2)))
    text = refusal(listed(["0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"], (0, 1), 2, chain(2)))
    assert "(rule: progress)" in text
    assert "deadlock: device 0 waits at 0B0 for 1>0B0, not yet sent" in text
    assert "deadlock: device 1 waits at 1F1 for 0>1F1, not yet sent" in text
    assert "[0B0]" in text
    assert "[1F1]" in text


def test_crossed_orders_of_two_devices_deadlock() -> None:
    # Device 0 waits for 3's work before it does 2's; device 1 the other way round.
    edges = [StageEdge(0, 1, True), StageEdge(0, 3, True), StageEdge(1, 2, True)]
    text = refusal(listed(["0F0 2F0", "3F0 1F0"], (0, 1, 0, 1), 1, [*edges, StageEdge(2, 3, True)]))
    assert "(rule: progress)" in text
    assert "device 0 waits at 2F0 for 1>2F0, not yet sent" in text
    assert "device 1 waits at 3F0 for 2>3F0, not yet sent" in text


def test_a_message_behind_one_that_waits_is_not_delivered() -> None:
    # 0>1F1 would be there, but rendezvous delivers 0>2F0 first and that receive comes too late.
    edges = [StageEdge(0, 1, True), StageEdge(0, 2, True)]
    good = listed(["0F0", "1F0 2F0"], (0, 1, 1), 1, edges)
    check(good)
    swapped = edited(good, 0, "0>1F0! 0>2F0!", "0>2F0! 0>1F0!")
    assert "(rule: channels)" in refusal(swapped)


def test_too_many_in_flight_is_refused() -> None:
    schedule = LIST.schedule
    check(LIST, in_flight(schedule))
    text = refusal(LIST, (2, 2, 1))
    assert "stage 0 holds 3 micro-batches, and may hold 2" in text
    assert "[0F2]" in text


def test_limits_are_one_a_stage() -> None:
    assert "2 in-flight limits for 3 stages" in refusal(LIST, (3, 3))


def test_the_grid() -> None:
    assert broken(1, "1B0 1>0B0! 0>1F2? 1F2 1>2F2!", "0>1F2? 1F2 1>2F2! 1>0B0!").splitlines() == [
        "the schedule 1f1b cannot run (rule: completeness)",
        "  - 1B0 never runs, nor do its halves 1I0 and 1W0",
        "step       3     4     5     6     7     8",
        "device 0   0B0   0F3   0B1   0B2   0B3",
        "device 1   1B1   1F3   1B2   1B3  [--]",
        "device 2   2B1   2F2   2B2   2F3   2B3",
        "Mend the marked actions, or use a built-in schedule.",
    ]


def test_a_large_grid_shows_the_place_of_the_fault() -> None:
    schedule = make_schedule("1f1b", 40, 40, 200)
    devices = list(schedule.devices)
    devices[30] = devices[30][:-60] + devices[30][-59:]
    lines = refusal(expand(replace(schedule, devices=tuple(devices)), chain(40))).splitlines()
    assert len(lines) < 40
    assert max(map(len, lines)) < 140
    assert any(line.startswith("device 30") and "[--]" in line for line in lines)


def test_many_faults_are_counted() -> None:
    schedule = make_schedule("gpipe", 2, 2, 30)
    empty = replace(schedule, devices=((), schedule.devices[1]))
    text = refusal(expand(empty, chain(2)))
    assert text.count("\n  - ") == 9
    assert "and 52 more" in text


def test_a_device_without_a_list_is_refused() -> None:
    schedule = replace(LIST.schedule, device_of_stage=(0, 1, 5))
    assert "stage 2 is on device 5, which has no list" in refusal(replace(LIST, schedule=schedule))


def test_lists_and_devices_must_be_as_many() -> None:
    assert "2 lists for 3 devices" in refusal(replace(LIST, devices=LIST.devices[:2]))
