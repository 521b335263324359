"""A step as it unfolds: what each device computes when, what crosses when, what is held.

Legend:  d devices, k stages, n computes, t transfers.

Predicted by the simulator, or recorded by a runtime: the same value, so that both can be drawn on
the same axes. Times are seconds from the start of the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stagecut.ir.problem import FloatArray, IntArray
from stagecut.ir.schedule import Message, Phase


@dataclass(frozen=True, slots=True)
class EdgeCost:
    """What one micro-batch takes to cross one edge of the stage graph, in seconds."""

    source: int
    destination: int
    forward_seconds: float
    """Of the activations."""
    backward_seconds: float
    """Of the gradients on their way back; 0 where none are."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """A sum of gradients after the last backward: of replicas, or of a weight several stages hold.

    It starts when every device that owns one of the stages is done, and occupies them all.
    """

    stages: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Predicted costs of a step; each tuple has shape [k], seconds and bytes a micro-batch."""

    forward_seconds: tuple[float, ...]
    backward_seconds: tuple[float, ...]
    backward_input_seconds: tuple[float, ...]
    backward_weight_seconds: tuple[float, ...]
    saved_bytes: tuple[float, ...]
    """Held from a micro-batch's forward until its backward, or its weight half, is done."""
    static_bytes: tuple[float, ...]
    """Held all the time: weights, gradients, optimizer state, buffers, workspace."""
    optimizer_seconds: tuple[float, ...]
    """Once a step."""
    edges: tuple[EdgeCost, ...]
    """One for every edge between stages of different devices."""
    reductions: tuple[Reduction, ...] = ()
    """In the order in which every device runs them."""

    def compute_seconds(self, phase: Phase) -> tuple[float, ...]:
        """Shape [k]: seconds of one micro-batch in `phase`."""
        return {
            Phase.FORWARD: self.forward_seconds,
            Phase.BACKWARD: self.backward_seconds,
            Phase.BACKWARD_INPUT: self.backward_input_seconds,
            Phase.BACKWARD_WEIGHT: self.backward_weight_seconds,
        }[phase]


@dataclass(frozen=True, slots=True)
class Span:
    """One compute."""

    device: int
    stage: int
    microbatch: int
    phase: Phase
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True)
class TransferSpan:
    """One message on its way, from both ends ready until it has arrived."""

    message: Message
    source_device: int
    destination_device: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True)
class TailSpan:
    """What a device does once a step, after its last compute."""

    device: int
    kind: Literal["reduction", "optimizer"]
    stages: tuple[int, ...]
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """All computes as columns of shape [n], by device and then in order of execution."""

    device: IntArray
    stage: IntArray
    microbatch: IntArray
    phase: NDArray[np.str_]
    """The letter of the Phase."""
    start_seconds: FloatArray
    end_seconds: FloatArray

    def __len__(self) -> int:
        return len(self.device)

    def __getitem__(self, index: int) -> Span:
        return Span(
            int(self.device[index]),
            int(self.stage[index]),
            int(self.microbatch[index]),
            Phase(str(self.phase[index])),
            float(self.start_seconds[index]),
            float(self.end_seconds[index]),
        )

    def __iter__(self) -> Iterator[Span]:
        return (self[index] for index in range(len(self)))


@dataclass(frozen=True, slots=True, eq=False)
class TransferSpans:
    """All transfers as columns of shape [t], by ordered pair of devices and then in order."""

    source: IntArray
    """The stage that sends."""
    destination: IntArray
    phase: NDArray[np.str_]
    """F for activations, B for gradients."""
    microbatch: IntArray
    source_device: IntArray
    destination_device: IntArray
    start_seconds: FloatArray
    end_seconds: FloatArray

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> TransferSpan:
        message = Message(
            int(self.source[index]),
            int(self.destination[index]),
            Phase(str(self.phase[index])),
            int(self.microbatch[index]),
        )
        return TransferSpan(
            message,
            int(self.source_device[index]),
            int(self.destination_device[index]),
            float(self.start_seconds[index]),
            float(self.end_seconds[index]),
        )

    def __iter__(self) -> Iterator[TransferSpan]:
        return (self[index] for index in range(len(self)))


@dataclass(frozen=True, slots=True, eq=False)
class MemoryCurve:
    """A device's memory over a step: n_bytes[j] from at_seconds[j] until at_seconds[j + 1]."""

    at_seconds: FloatArray
    """Starts with 0; never decreases."""
    n_bytes: FloatArray

    @property
    def peak_bytes(self) -> float:
        """The most held at once."""
        return float(self.n_bytes.max())

    @property
    def peak_seconds(self) -> float:
        """When the peak is first reached."""
        return float(self.at_seconds[self.n_bytes.argmax()])


PathStep = Span | TransferSpan | TailSpan


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """One step, predicted or recorded."""

    name: str
    """Of the schedule."""
    device_of_stage: tuple[int, ...]
    """Shape [k]."""
    n_devices: int
    n_microbatches: int
    spans: Spans
    transfers: TransferSpans
    tail: tuple[TailSpan, ...]
    """Gradient sums and optimizer steps, in order."""
    memory: tuple[MemoryCurve, ...]
    """One a device; empty where it was not recorded."""
    critical_path: tuple[PathStep, ...]
    """From the start of the step to its end, each waiting for the one before; empty if unknown."""

    @property
    def pipeline_seconds(self) -> float:
        """Until the last compute ends."""
        return float(self.spans.end_seconds.max(initial=0.0))

    @property
    def step_seconds(self) -> float:
        """Until everything ends."""
        return max([self.pipeline_seconds, *(span.end_seconds for span in self.tail)])

    @property
    def compute_seconds(self) -> FloatArray:
        """Shape [d]: forwards and backwards of each device."""
        seconds = self.spans.end_seconds - self.spans.start_seconds
        total: FloatArray = np.zeros(self.n_devices)
        np.add.at(total, self.spans.device, seconds)
        return total

    @property
    def busy_seconds(self) -> FloatArray:
        """Shape [d]: computes, gradient sums and optimizer steps."""
        busy = self.compute_seconds.copy()
        for span in self.tail:
            busy[span.device] += span.end_seconds - span.start_seconds
        return busy

    @property
    def idle_seconds(self) -> FloatArray:
        """Shape [d]: the rest of the step."""
        return self.step_seconds - self.busy_seconds

    @property
    def bubble_share(self) -> float:
        """Share of the devices' time in which they wait; sums and optimizer steps are no waits."""
        if not self.step_seconds:
            return 0.0
        busy = float(self.busy_seconds.sum())
        return 1 - busy / (self.n_devices * self.step_seconds)

    @property
    def peak_bytes(self) -> tuple[float, ...]:
        """Shape [d], or empty where memory was not recorded."""
        return tuple(curve.peak_bytes for curve in self.memory)
