"""Proves an action list before it runs: complete, ordered, matching, within limits, no deadlock.

Each rule is a function from the list to the faults it finds. A rule may rely on those before it,
so the first rule with faults ends the check; it reports all of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagecut.ir.errors import ScheduleError
from stagecut.ir.schedule import ActionList
from stagecut.partitioner.schedules.fault import Fault
from stagecut.partitioner.schedules.grid import draw
from stagecut.partitioner.schedules.rules_computes import (
    agreement,
    completeness,
    limits,
    order,
    placement,
)
from stagecut.partitioner.schedules.rules_messages import channels, messages, progress

RULES = (placement, completeness, agreement, order, messages, channels, progress)
REPORTED = 8
"""Faults that one error spells out and draws."""


def check(action_list: ActionList, in_flight_limit: Sequence[int] | None = None) -> None:
    """Passes a list that every runtime can execute to its end; O(actions).

    `in_flight_limit`, shape [k]: the most micro-batches that each stage may hold at once.

    Raises:
        ScheduleError: the list is incomplete, out of order, holds too much or would deadlock; the
            message names every fault of the first rule that is broken, and draws where they are.
    """
    for rule in RULES:
        _refuse(action_list, rule.__name__, list(rule(action_list)))
    if in_flight_limit is not None:
        _refuse(action_list, limits.__name__, list(limits(action_list, in_flight_limit)))


def _refuse(action_list: ActionList, rule: str, faults: list[Fault]) -> None:
    if not faults:
        return
    shown = faults[:REPORTED]
    reasons = [f"  - {fault.reason}" for fault in shown]
    if len(faults) > REPORTED:
        reasons.append(f"  - and {len(faults) - REPORTED} more")
    grid = draw(action_list.devices, [mark for fault in shown for mark in fault.marks])
    name = action_list.schedule.name
    lines = [f"the schedule {name} cannot run (rule: {rule})", *reasons, grid]
    raise ScheduleError("\n".join([*lines, "Mend the marked actions, or use a built-in schedule."]))
