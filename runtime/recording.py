"""What a step really did, action by action, and when; as a timeline beside the predicted one.

A device reads its clock at the start and at the end of every action, about a tenth of a microsecond
each; on a GPU it records an event on its stream instead, and reads them all when asked.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from stagecut.ir.schedule import Action, ActionList, Compute, Message, Phase, Receive, Send
from stagecut.ir.timeline import Spans, TailSpan, Timeline, TransferSpans

Mark = float | torch.cuda.Event
"""A moment: seconds of the host's clock, or an event on a GPU's stream."""


class Ran(NamedTuple):
    """An action that was executed."""

    action: Action
    start_seconds: float
    end_seconds: float


@dataclass(slots=True)
class Recorder:
    """What one device executes in a step, in order; cheap enough to be always on."""

    place: torch.device
    entries: list[tuple[Action, Mark, Mark]] = field(default_factory=list)
    sums: list[tuple[tuple[int, ...], Mark, Mark]] = field(default_factory=list)
    """Gradient sums after the last action, with the stages that take part."""

    def mark(self) -> Mark:
        """Now, as the device sees it."""
        if self.place.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def clear(self) -> None:
        """Forgets the step before."""
        self.entries.clear()
        self.sums.clear()

    def read(self) -> Recorded:
        """Everything in seconds of the host's clock; waits for a GPU to get there."""
        seconds = self._reader()
        return Recorded(
            tuple(Ran(action, seconds(a), seconds(b)) for action, a, b in self.entries),
            tuple((stages, seconds(a), seconds(b)) for stages, a, b in self.sums),
        )

    def _reader(self) -> Callable[[Mark], float]:
        now = self.mark()
        if isinstance(now, float):
            return lambda mark: float(mark)  # type: ignore[arg-type]
        now.synchronize()
        host = time.perf_counter()
        # Marks of one recorder are of one kind: events here.
        return lambda mark: host - mark.elapsed_time(now) / 1e3  # type: ignore[union-attr]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One device's step, in seconds of its host's clock."""

    actions: tuple[Ran, ...]
    sums: tuple[tuple[tuple[int, ...], float, float], ...]
    """(stages, start, end) of each gradient sum."""

    def moved(self, seconds: float) -> Recorded:
        """The same on a clock that is `seconds` ahead."""
        return Recorded(
            tuple(Ran(a, start + seconds, end + seconds) for a, start, end in self.actions),
            tuple((stages, start + seconds, end + seconds) for stages, start, end in self.sums),
        )


def timeline(actions: ActionList, recorded: Sequence[Recorded]) -> Timeline:
    """A recorded step, from its first action on.

    A message is drawn from when both ends were posted until the compute that needs it started:
    nobody looks earlier whether it has arrived. Memory and the critical path are not recorded.
    """
    schedule = actions.schedule
    began = min((ran.start_seconds for device in recorded for ran in device.actions), default=0.0)
    devices = [device.moved(-began) for device in recorded]
    return Timeline(
        name=schedule.name,
        device_of_stage=schedule.device_of_stage,
        n_devices=len(devices),
        n_microbatches=schedule.n_microbatches,
        spans=_spans(devices),
        transfers=_transfers(schedule.device_of_stage, devices),
        tail=tuple(
            TailSpan(number, "reduction", stages, start, end)
            for number, device in enumerate(devices)
            for stages, start, end in device.sums
        ),
        memory=(),
        critical_path=(),
    )


def _spans(devices: Sequence[Recorded]) -> Spans:
    rows = [
        (number, ran.action, ran.start_seconds, ran.end_seconds)
        for number, device in enumerate(devices)
        for ran in device.actions
        if isinstance(ran.action, Compute)
    ]
    return Spans(
        device=np.array([number for number, *_ in rows], dtype=np.int64),
        stage=np.array([action.stage for _, action, *_ in rows], dtype=np.int64),
        microbatch=np.array([action.microbatch for _, action, *_ in rows], dtype=np.int64),
        phase=np.array([action.phase.value for _, action, *_ in rows], dtype="<U1"),
        start_seconds=np.array([start for *_, start, _ in rows], dtype=np.float64),
        end_seconds=np.array([end for *_, end in rows], dtype=np.float64),
    )


def _transfers(device_of_stage: Sequence[int], devices: Sequence[Recorded]) -> TransferSpans:
    posted: dict[Message, list[float]] = defaultdict(list)
    used: dict[tuple[int, Phase, int], float] = {}
    for ran in chain.from_iterable(device.actions for device in devices):
        if isinstance(ran.action, Send | Receive):
            posted[ran.action.message].append(ran.end_seconds)
        elif ran.action.phase is not Phase.BACKWARD_WEIGHT:
            forward = ran.action.phase is Phase.FORWARD
            phase = Phase.FORWARD if forward else Phase.BACKWARD
            used[ran.action.stage, phase, ran.action.microbatch] = ran.start_seconds
    messages = sorted(
        posted, key=lambda m: (device_of_stage[m.source], device_of_stage[m.destination], posted[m])
    )
    starts = [max(posted[m]) for m in messages]
    ends = [used[m.destination, m.phase, m.microbatch] for m in messages]
    return TransferSpans(
        source=np.array([m.source for m in messages], dtype=np.int64),
        destination=np.array([m.destination for m in messages], dtype=np.int64),
        phase=np.array([m.phase.value for m in messages], dtype="<U1"),
        microbatch=np.array([m.microbatch for m in messages], dtype=np.int64),
        source_device=np.array([device_of_stage[m.source] for m in messages], dtype=np.int64),
        destination_device=np.array(
            [device_of_stage[m.destination] for m in messages], dtype=np.int64
        ),
        start_seconds=np.minimum(starts, ends) if messages else np.zeros(0),
        end_seconds=np.array(ends, dtype=np.float64),
    )
