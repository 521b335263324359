"""Schedules print, parse and load; every faulty word is named."""

from __future__ import annotations

from random import Random

import pytest

from stagecut.ir.errors import ArgumentError, ScheduleError
from stagecut.ir.schedule import parse_action
from stagecut.partitioner.schedules import (
    SCHEDULES,
    check,
    expand,
    load_schedule,
    make_schedule,
    parse_schedule,
    print_schedule,
    schedule_of,
)
from tests.partitioner.schedules.random_lists import random_edges, random_schedule
from tests.partitioner.schedules.support import chain

TORCH_CSV = """\
0F0,0F1,2F0,2F1,,2B0,2B1,0B0,0B1
,1F0,1F1,3F0,(3F1;3B0)OVERLAP_F_B,3B1,1B0,1B1
"""
TORCH_COMMS_CSV = """\
0UNSHARD,0F0,0SEND_F0,1RECV_B0,0I0,0W0,0REDUCE_GRAD,0RESHARD
0RECV_F0,1F0,1B0,1SEND_B0
"""


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_survives_its_text(name) -> None:
    k = {"interleaved": 6, "zb_v": 6, "dualpipe_v": 6}.get(name, 3)
    schedule = make_schedule(name, k, 3, 4)
    assert parse_schedule(print_schedule(schedule)) == schedule


@pytest.mark.parametrize("seed", range(50))
def test_random_schedules_survive_their_text(seed) -> None:
    random = Random(seed)
    k = random.randint(1, 6)
    schedule = random_schedule(random, random_edges(random, k), k, random.randint(1, k), 3)
    assert parse_schedule(print_schedule(schedule)) == schedule
    commas = "\n".join(",".join(map(str, row)) for row in schedule.devices)
    assert parse_schedule(commas, "random") == schedule


def test_the_printed_form() -> None:
    assert print_schedule(make_schedule("1f1b", 2, 2, 2)) == (
        "# 1f1b\n0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1\n"
    )


def test_torch_csv_with_idle_and_paired_cells() -> None:
    schedule = load_schedule(TORCH_CSV)
    assert schedule.device_of_stage == (0, 1, 0, 1)
    assert " ".join(map(str, schedule.devices[1])) == "1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1"
    check(expand(schedule, chain(4)))


def test_torch_communication_is_derived_anew() -> None:
    schedule = load_schedule(TORCH_COMMS_CSV)
    assert [str(c) for c in schedule.devices[0]] == ["0F0", "0I0", "0W0"]
    check(expand(schedule, chain(2)))


def test_a_file_names_the_schedule(tmp_path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("0F0,0B0\n1F0,1B0\n")
    assert load_schedule(path) == load_schedule(str(path))
    assert load_schedule(path).name == "mine"


def test_a_user_s_function() -> None:
    rows = [[parse_action(f"{s}{p}{i}") for i in range(2) for p in "FB"] for s in range(2)]
    schedule = schedule_of("one at a time", rows)
    check(expand(schedule, chain(2)), (1, 1))


@pytest.mark.parametrize(
    "text", ["0F0 0B0", "# mine\n0F0 0B0", "0F0\n", "(0F1;0B0)OVERLAP_F_B 0F0 0B1"]
)
def test_what_looks_like_text_is_text(text) -> None:
    assert load_schedule(text).n_stages == 1


def test_every_fault_is_named() -> None:
    with pytest.raises(ScheduleError) as error:
        load_schedule("0F0 0X0\n1F0 0>1F0! 1B")
    for words in ("line 1: '0X0'", "line 2: 0>1F0! is communication", "line 2: '1B'"):
        assert words in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0F0 1F0\n1F1", r"stage 1 runs on devices \[0, 1\]"),
        ("0F0\n2F0", "stage 1 runs nowhere, but stage 2 does"),
        ("# nothing\n\n", "computes nothing"),
    ],
)
def test_placement_must_follow_from_the_text(text, words) -> None:
    with pytest.raises(ScheduleError, match=words):
        load_schedule(text)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"nowhere\.csv"):
        load_schedule("nowhere.csv")
