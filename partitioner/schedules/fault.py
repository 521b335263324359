"""What a rule finds wrong with an action list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stagecut.ir.schedule import Action, ActionList, Compute
from stagecut.partitioner.schedules.grid import Mark


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a list is refused, and where."""

    reason: str
    """One line, without a full stop."""
    marks: tuple[Mark, ...] = ()
    """The actions at fault."""


def placed(action_list: ActionList) -> Iterator[tuple[Mark, Action]]:
    """Every action with its (device, position)."""
    for device, actions in enumerate(action_list.devices):
        yield from (((device, position), action) for position, action in enumerate(actions))


def compute_marks(action_list: ActionList) -> dict[Compute, Mark]:
    """Where each compute stands; a list that is complete has each once."""
    return {a: mark for mark, a in placed(action_list) if isinstance(a, Compute)}
