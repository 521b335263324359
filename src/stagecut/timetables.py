"""Schedules as a user gives them: a name, a file or its text, or a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

from stagecut.ir.errors import ArgumentError
from stagecut.ir.schedule import Schedule
from stagecut.partitioner.schedules import (
    SCHEDULES,
    folded,
    load_schedule,
    make_schedule,
    print_schedule,
)

ScheduleLike = str | Path | Callable[[int, int, int], Schedule]
"""A built-in name; a file of actions, or its text; (stages, devices, micro-batches) -> Schedule."""

FOLDED = "folded"
"""The schedule of stages that lie on devices as METIS's parts of the model do."""

STAGES_A_DEVICE = {"interleaved": 2, "zb_v": 2, "dualpipe_v": 2}
"""Of the schedules by which devices own several stages."""


def timetable(
    schedule: ScheduleLike, n_devices: int, n_microbatches: int | None, default: int
) -> Schedule:
    """What each device computes in a step.

    Args:
        schedule: As the user gave it.
        n_devices: How many devices run it.
        n_microbatches: As the user gave it; a text says itself how many it is for.
        default: Micro-batches a stage where neither says.

    Raises:
        ArgumentError: the schedule is for other numbers, or is none.
        ScheduleError: a text of actions is wrong.
    """
    if n_microbatches is not None and n_microbatches < 1:
        raise ArgumentError(f"n_microbatches is {n_microbatches}; give 1 or more")
    if schedule == FOLDED:  # one stage a device, until METIS's parts are cut into more
        return folded(range(n_devices), n_microbatches or default * n_devices)
    if callable(schedule) or schedule in SCHEDULES:
        a_device = 1 if callable(schedule) else STAGES_A_DEVICE.get(str(schedule), 1)
        n_stages = a_device * n_devices
        made = scheduled(schedule, n_stages, n_devices, n_microbatches or default * n_stages)
    else:
        made = _loaded(schedule)
    if len(made.devices) != n_devices:
        raise ArgumentError(
            f"schedule {made.name} is for {len(made.devices)} devices, not {n_devices}; "
            "ask for as many"
        )
    if n_microbatches not in (None, made.n_microbatches):
        raise ArgumentError(
            f"schedule {made.name} is for {made.n_microbatches} micro-batches, not "
            f"{n_microbatches}; leave n_microbatches out, or give a function instead of a text"
        )
    return made


def scheduled(
    schedule: ScheduleLike, n_stages: int, n_devices: int, n_microbatches: int
) -> Schedule:
    """The schedule of some stages; a text is what it is, whatever the numbers.

    Raises:
        ArgumentError: there is no such schedule, or it cannot run these numbers.
        ScheduleError: a text of actions is wrong.
    """
    if callable(schedule):
        made = schedule(n_stages, n_devices, n_microbatches)
        if not isinstance(made, Schedule):
            raise ArgumentError(
                f"the schedule function {_name(schedule)} returned {type(made).__name__}; return "
                "a Schedule, as stagecut.partitioner.schedules.schedule_of makes from lists"
            )
        return made
    if schedule in SCHEDULES:
        return make_schedule(str(schedule), n_stages, n_devices, n_microbatches)
    return _loaded(schedule)


def microbatches_of(schedule: ScheduleLike) -> int | None:
    """How many micro-batches a text of actions is for; None where any number will do."""
    if callable(schedule) or schedule in (*SCHEDULES, FOLDED):
        return None
    return _loaded(schedule).n_microbatches


def stored(schedule: ScheduleLike, made: Schedule) -> str:
    """What a plan keeps: the name of a built-in schedule, the text of another."""
    if not callable(schedule) and schedule in (*SCHEDULES, FOLDED):
        return made.name
    return print_schedule(made)


def _loaded(schedule: str | Path) -> Schedule:
    try:
        return load_schedule(schedule)
    except ArgumentError as error:
        names = ", ".join((*SCHEDULES, FOLDED))
        raise ArgumentError(f"{error}; or the name of a schedule: {names}") from error


def _name(function: Callable[..., object]) -> str:
    return function.__name__ if inspect.isfunction(function) else repr(function)
