"""Schedules as data: what each device computes, sends and receives, in order.

Compute   2F0       stage 2, forward of micro-batch 0      (B backward, I and W its two halves)
Send      0>2F1!    stage 0 sends micro-batch 1's activations to stage 2
Receive   0>2F1?    stage 2 receives them                  (2>0B1 carries the gradients back)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from stagecut.ir.errors import ScheduleError


class Phase(StrEnum):
    """What is computed, or what a message carries (F activations, B gradients)."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"

    # Enum's own hash is a Python function; actions are hashed by the million.
    __hash__ = str.__hash__


# Named tuples: large schedules make, hash and compare computes and messages by the million.
class Compute(NamedTuple):
    """One stage's work on one micro-batch."""

    stage: int
    phase: Phase
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.phase.value}{self.microbatch}"


class Message(NamedTuple):
    """Everything that one stage sends another for one micro-batch in one direction."""

    source: int
    """Stage that sends."""
    destination: int
    """Stage that receives."""
    phase: Phase
    """FORWARD for activations, BACKWARD for gradients."""
    microbatch: int

    def __str__(self) -> str:
        return f"{self.source}>{self.destination}{self.phase.value}{self.microbatch}"


@dataclass(frozen=True, slots=True, order=True)
class Send:
    """Posts a message; does not wait for its delivery."""

    message: Message

    def __str__(self) -> str:
        return f"{self.message}!"


@dataclass(frozen=True, slots=True, order=True)
class Receive:
    """Posts the receive of a message; the compute that needs it waits for it."""

    message: Message

    def __str__(self) -> str:
        return f"{self.message}?"


Action = Compute | Send | Receive


@dataclass(frozen=True, slots=True)
class Schedule:
    """What each device computes, in order, before communication is added."""

    name: str
    device_of_stage: tuple[int, ...]
    """Shape [k]: the device that owns each stage."""
    n_microbatches: int
    devices: tuple[tuple[Compute, ...], ...]
    """One ordered list a device."""

    @property
    def n_stages(self) -> int:
        """k."""
        return len(self.device_of_stage)


@dataclass(frozen=True, slots=True, order=True)
class StageEdge:
    """One stage uses values of another; skips are edges like any other."""

    source: int
    destination: int
    gradient: bool
    """Whether gradients come back."""


@dataclass(frozen=True, slots=True)
class ActionList:
    """A schedule with its communication: what the runtimes execute, action for action."""

    schedule: Schedule
    edges: tuple[StageEdge, ...]
    devices: tuple[tuple[Action, ...], ...]
    """One ordered list a device. Messages of an ordered pair of devices match in posting order."""


_COMPUTE = re.compile(r"(\d+)([FBIW])(\d+)")
_TRANSFER = re.compile(r"(\d+)>(\d+)([FB])(\d+)([!?])")


def parse_action(text: str) -> Action:
    """The action that prints as `text`.

    Raises:
        ScheduleError: the text is none of the three forms.
    """
    if match := _COMPUTE.fullmatch(text.strip()):
        stage, phase, microbatch = match.groups()
        return Compute(int(stage), Phase(phase), int(microbatch))
    if match := _TRANSFER.fullmatch(text.strip()):
        source, destination, phase, microbatch, way = match.groups()
        message = Message(int(source), int(destination), Phase(phase), int(microbatch))
        return Send(message) if way == "!" else Receive(message)
    raise ScheduleError(f"{text!r} is not an action: write 2F0 (or B, I, W), 0>2F1! or 0>2F1?")
