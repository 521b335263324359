"""The critical path: from the end of the step back, each event and the one that let it start."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from stagecut.ir.schedule import Schedule
from stagecut.ir.timeline import PathStep, Spans, TailSpan, TransferSpans
from stagecut.partitioner.schedules.execution import Event, Execution


def critical_path(
    spans: Spans,
    transfers: TransferSpans,
    tail: tuple[TailSpan, ...],
    execution: Execution,
    schedule: Schedule,
) -> tuple[PathStep, ...]:
    """In order of time; each step starts when the one before it ends. O(length)."""
    late = list(_late(tail, schedule))
    devices = _waits_for(late[-1], schedule) if late else range(len(execution.ends))
    device = max(devices, key=lambda device: execution.clock[device])
    last = (False, device, len(execution.ends[device]) - 1)
    return tuple(reversed([*late, *_early(last, spans, transfers, execution)]))


def _late(tail: tuple[TailSpan, ...], schedule: Schedule) -> Iterator[TailSpan]:
    """Back from the end of the step through gradient sums and optimizer steps."""
    step = max(tail, key=lambda span: span.end_seconds, default=None)
    while step is not None:
        yield step
        devices, start = _waits_for(step, schedule), step.start_seconds
        before = (span for span in tail if span.device in devices and span.end_seconds == start)
        step = next(before, None)


def _waits_for(step: TailSpan, schedule: Schedule) -> set[int]:
    """Those that must be free before `step`."""
    if step.kind == "optimizer":
        return {step.device}
    return {schedule.device_of_stage[stage] for stage in step.stages}


def _early(
    event: Event, spans: Spans, transfers: TransferSpans, execution: Execution
) -> Iterator[PathStep]:
    """Back from one compute to the start of the step."""
    first_span = [0, *accumulate(map(len, execution.ends))]
    first_transfer = [0, *accumulate(map(len, execution.arrivals))]
    while event[2] >= 0:
        is_transfer, where, index = event
        yield (
            transfers[first_transfer[where] + index]
            if is_transfer
            else (spans[first_span[where] + index])
        )
        event = max(execution.before(event), key=execution.end)
