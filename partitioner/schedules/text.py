"""Schedules as text: a line a device, actions separated by spaces or commas.

    # zero_bubble
    0F0 0F1 0I0 0W0 0I1 0W1
    1F0 1I0 1F1 1I1 1W0 1W1

The CSV files of torch.distributed.pipelining read the same way: a row a device, an empty cell where
it idles, `(0F1;1B0)OVERLAP_F_B` for two computes side by side (read as one after the other). Its
communication cells (0SEND_F1, 0RECV_B1, 0UNSHARD, ...) are skipped: `expand` derives communication.
Which device owns a stage, and how many micro-batches there are, follows from the actions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from stagecut.ir.errors import ArgumentError, ScheduleError
from stagecut.ir.schedule import Compute, Schedule, parse_action

_BESIDE = re.compile(r"\(([^()]*)\)OVERLAP_F_B")
_TORCH_COMMUNICATION = re.compile(
    r"\d+(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)\d*"
)


def print_schedule(schedule: Schedule) -> str:
    """The schedule as text; `parse_schedule` is its inverse."""
    rows = (" ".join(map(str, computes)) for computes in schedule.devices)
    return "\n".join([f"# {schedule.name}", *rows, ""])


def parse_schedule(text: str, name: str = "custom") -> Schedule:
    """The schedule that a text describes; lines that start with # are comments.

    One on the very first line names the schedule in place of `name`.

    Raises:
        ScheduleError: the text is no schedule; the message names every faulty word and its line.
    """
    if text.startswith("#"):
        name = text.splitlines()[0].lstrip("# ").strip() or name
    rows: list[list[Compute]] = []
    faults: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            rows.append(_row(line, number, faults))
    if faults:
        raise ScheduleError("not a schedule:\n" + "\n".join(f"  - {fault}" for fault in faults))
    return schedule_of(name, rows)


def _row(line: str, number: int, faults: list[str]) -> list[Compute]:
    flat = _BESIDE.sub(lambda beside: beside[1].replace(";", " "), line)
    computes = []
    for word in re.split(r"[\s,]+", flat.strip().strip(",")):
        if not word or _TORCH_COMMUNICATION.fullmatch(word):
            continue
        try:
            action = parse_action(word)
        except ScheduleError as error:
            faults.append(f"line {number}: {error}")
            continue
        if isinstance(action, Compute):
            computes.append(action)
        else:
            faults.append(f"line {number}: {word} is communication, which follows from the rest")
    return computes


def schedule_of(name: str, rows: Iterable[Iterable[Compute]]) -> Schedule:
    """The schedule of one ordered list of computes a device, as a user's own function makes them.

    Raises:
        ScheduleError: a stage runs on two devices or on none, or nothing runs at all.
    """
    devices = tuple(map(tuple, rows))
    owners: dict[int, set[int]] = {}
    for device, computes in enumerate(devices):
        for compute in computes:
            owners.setdefault(compute.stage, set()).add(device)
    if not owners:
        raise ScheduleError(f"the schedule {name} computes nothing; write one line a device")
    faults = [
        f"stage {stage} runs on devices {sorted(owners[stage])}; put it on one"
        if stage in owners
        else f"stage {stage} runs nowhere, but stage {max(owners)} does; number stages from 0"
        for stage in range(max(owners) + 1)
        if len(owners.get(stage, ())) != 1
    ]
    if faults:
        raise ScheduleError("\n  - ".join([f"the schedule {name} places stages badly:", *faults]))
    m = 1 + max(compute.microbatch for computes in devices for compute in computes)
    owner = tuple(next(iter(owners[stage])) for stage in sorted(owners))
    return Schedule(name, owner, m, devices)


def load_schedule(path_or_text: str | Path) -> Schedule:
    """A user's own schedule, from a file or from its text; not yet checked.

    A string is text if it has several lines or begins with an action, and a path otherwise.

    Raises:
        ArgumentError: there is no such file.
        ScheduleError: the text is no schedule.
    """
    if isinstance(path_or_text, str) and re.match(r"\s*(#|\(?\d+[FBIW]\d)|.*\n", path_or_text):
        return parse_schedule(path_or_text)
    path = Path(path_or_text)
    if not path.is_file():
        raise ArgumentError(
            f"there is no schedule file {str(path)!r}; give the path of one, or its text"
        )
    return parse_schedule(path.read_text(encoding="utf-8"), name=path.stem)
