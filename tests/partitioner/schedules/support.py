"""Small things that the schedule tests share."""

from __future__ import annotations

from dataclasses import replace

from stagecut.ir.schedule import ActionList, Schedule, StageEdge, parse_action
from stagecut.ir.timeline import EdgeCost, StepCosts
from stagecut.partitioner.schedules import expand


def chain(k: int) -> list[StageEdge]:
    """Each stage uses the one before."""
    return [StageEdge(stage, stage + 1, True) for stage in range(k - 1)]


def dense(k: int) -> list[StageEdge]:
    """Each stage uses all before it; some gradients do not come back."""
    return [StageEdge(a, b, (a + b) % 3 > 0) for a in range(k) for b in range(a + 1, k)]


def rows(*texts: str) -> list[list]:
    """Lists of actions from their text."""
    return [[parse_action(word) for word in text.split()] for text in texts]


def listed(text: list[str], owner: tuple[int, ...], m: int, edges: list[StageEdge]) -> ActionList:
    """The expanded list of a schedule written as text, one line a device."""
    computes = tuple(map(tuple, rows(*text)))
    return expand(Schedule("written", owner, m, computes), edges)


def edited(action_list: ActionList, device: int, old: str, new: str) -> ActionList:
    """The list with a part of one row's text replaced; the schedule stays as it was."""
    text = f" {' '.join(map(str, action_list.devices[device]))} "
    old, new = f" {old} ", f" {new} "
    assert text.count(old) == 1, f"{old!r} in {text!r}"
    devices = list(action_list.devices)
    devices[device] = tuple(rows(text.replace(old, new))[0])
    return replace(action_list, devices=tuple(devices))


def uniform_costs(
    k: int,
    forward: float = 1.0,
    backward_input: float = 1.0,
    backward_weight: float = 1.0,
    transfer: float = 0.0,
) -> StepCosts:
    """Every stage alike: one byte saved a micro-batch, ten held all the time."""
    return StepCosts(
        forward_seconds=(forward,) * k,
        backward_seconds=(backward_input + backward_weight,) * k,
        backward_input_seconds=(backward_input,) * k,
        backward_weight_seconds=(backward_weight,) * k,
        saved_bytes=(1.0,) * k,
        static_bytes=(10.0,) * k,
        optimizer_seconds=(0.0,) * k,
        edges=tuple(EdgeCost(s, s + 1, transfer, transfer) for s in range(k - 1)),
    )
