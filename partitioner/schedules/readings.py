"""What a simulated step shows: columns of spans, memory over time, the tail."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np

from stagecut.ir.problem import FloatArray
from stagecut.ir.schedule import ActionList, Compute, Message, Phase, Receive, Schedule
from stagecut.ir.timeline import (
    MemoryCurve,
    Spans,
    StepCosts,
    TailSpan,
    TransferSpans,
)
from stagecut.partitioner.schedules.execution import Execution


def span_columns(action_list: ActionList, execution: Execution) -> Spans:
    """All computes by device, in order."""
    rows = [[a for a in row if isinstance(a, Compute)] for row in action_list.devices]
    computes = list(chain.from_iterable(rows))
    return Spans(
        device=np.repeat(np.arange(len(rows)), [len(row) for row in rows]),
        stage=np.array([c.stage for c in computes], dtype=np.int64),
        microbatch=np.array([c.microbatch for c in computes], dtype=np.int64),
        phase=np.array([c.phase.value for c in computes], dtype="<U1"),
        start_seconds=_flat(execution.starts),
        end_seconds=_flat(execution.ends),
    )


def transfer_columns(action_list: ActionList, execution: Execution) -> TransferSpans:
    """All transfers by channel, in order."""
    messages = list(chain.from_iterable(_by_channel(action_list, execution)))
    counts = [len(arrivals) for arrivals in execution.arrivals]
    ends = np.array(execution.channels, dtype=np.int64).reshape(-1, 2)
    return TransferSpans(
        source=np.array([m.source for m in messages], dtype=np.int64),
        destination=np.array([m.destination for m in messages], dtype=np.int64),
        phase=np.array([m.phase.value for m in messages], dtype="<U1"),
        microbatch=np.array([m.microbatch for m in messages], dtype=np.int64),
        source_device=np.repeat(ends[:, 0], counts),
        destination_device=np.repeat(ends[:, 1], counts),
        start_seconds=_flat(execution.departures),
        end_seconds=_flat(execution.arrivals),
    )


def _by_channel(action_list: ActionList, execution: Execution) -> list[list[Message]]:
    owner = action_list.schedule.device_of_stage
    number = {ends: channel for channel, ends in enumerate(execution.channels)}
    messages: list[list[Message]] = [[] for _ in execution.channels]
    for device, row in enumerate(action_list.devices):
        for action in row:
            if isinstance(action, Receive):
                ends = owner[action.message.source], device
                messages[number[ends]].append(action.message)
    return messages


def _flat(columns: list[list[float]]) -> FloatArray:
    return np.fromiter(chain.from_iterable(columns), dtype=np.float64)


def memory_curves(
    spans: Spans, schedule: Schedule, costs: StepCosts, training: bool
) -> tuple[MemoryCurve, ...]:
    """Static bytes, and saved bytes from each forward's start to its (last) backward's end."""
    saved = np.asarray(costs.saved_bytes) * training
    static = np.zeros(len(schedule.devices))
    np.add.at(static, list(schedule.device_of_stage), costs.static_bytes)
    takes, frees = spans.phase == Phase.FORWARD.value, np.isin(spans.phase, ["B", "W"])
    change = saved[spans.stage] * (takes.astype(np.int64) - frees)
    at = np.where(takes, spans.start_seconds, spans.end_seconds)
    curves = []
    for device, base in enumerate(static):
        mine = (spans.device == device) & (takes | frees)
        n_bytes = base + np.concatenate([[0.0], np.cumsum(change[mine])])
        curves.append(MemoryCurve(np.concatenate([[0.0], at[mine]]), n_bytes))
    return tuple(curves)


def tail_spans(
    schedule: Schedule, costs: StepCosts, clock: Iterable[float]
) -> tuple[TailSpan, ...]:
    """Gradient sums in their order, each once all its devices are free; then the optimizer."""
    free = list(clock)
    tail = []
    for reduction in (reduction for reduction in costs.reductions if reduction.seconds):
        devices = sorted({schedule.device_of_stage[stage] for stage in reduction.stages})
        start = max(free[device] for device in devices)
        for device in devices:
            free[device] = start + reduction.seconds
            tail.append(TailSpan(device, "reduction", reduction.stages, start, free[device]))
    for device in range(len(free)):
        stages = tuple(s for s, owner in enumerate(schedule.device_of_stage) if owner == device)
        seconds = sum(costs.optimizer_seconds[stage] for stage in stages)
        if seconds:
            end = free[device] + seconds
            tail.append(TailSpan(device, "optimizer", stages, free[device], end))
    return tuple(tail)
