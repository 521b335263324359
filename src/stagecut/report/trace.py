"""Timelines as Chrome trace events, which Perfetto and chrome://tracing open.

The format: one process a timeline and one more for its transfers; a thread a device, or a pair of
devices. Computes, transfers and once-a-step work are complete events ("X"), memory is a counter
("C"), names are metadata ("M"). Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stagecut.ir.schedule import Phase
from stagecut.ir.timeline import Timeline

Event = dict[str, Any]
_MICRO = 1e6
_CATEGORY = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.BACKWARD_INPUT: "backward of inputs",
    Phase.BACKWARD_WEIGHT: "backward of weights",
}


def to_trace(timelines: Mapping[str, Timeline]) -> dict[str, Any]:
    """The timelines, by name (`predicted`, `measured`), on the same axes; write it as JSON."""
    events: list[Event] = []
    for number, (name, timeline) in enumerate(timelines.items()):
        process = 2 * number
        events += _process(process, f"{name}: {timeline.name}")
        events += _computes(process, timeline)
        events += _memory(process, timeline)
        if len(timeline.transfers):
            events += _process(process + 1, f"{name}: transfers")
            events += _transfers(process + 1, timeline)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _computes(process: int, timeline: Timeline) -> Iterator[Event]:
    for device in range(timeline.n_devices):
        stages = [s for s, owner in enumerate(timeline.device_of_stage) if owner == device]
        yield _thread(process, device, f"device {device}: stage {', '.join(map(str, stages))}")
    for span in timeline.spans:
        name = f"{span.stage}{span.phase.value}{span.microbatch}"
        details = {"stage": span.stage, "micro-batch": span.microbatch}
        yield _complete(process, span.device, name, _CATEGORY[span.phase], span, details)
    for tail in timeline.tail:
        yield _complete(
            process, tail.device, tail.kind, "once a step", tail, {"stages": list(tail.stages)}
        )


def _transfers(process: int, timeline: Timeline) -> Iterator[Event]:
    pairs = zip(
        timeline.transfers.source_device, timeline.transfers.destination_device, strict=True
    )
    threads = {pair: n for n, pair in enumerate(sorted({(int(a), int(b)) for a, b in pairs}))}
    for (source, destination), thread in threads.items():
        yield _thread(process, thread, f"device {source} to {destination}")
    for span in timeline.transfers:
        message = span.message
        category = "activations" if message.phase is Phase.FORWARD else "gradients"
        details = {
            "from stage": message.source,
            "to stage": message.destination,
            "micro-batch": message.microbatch,
        }
        thread = threads[span.source_device, span.destination_device]
        yield _complete(process, thread, str(message), category, span, details)


def _memory(process: int, timeline: Timeline) -> Iterator[Event]:
    for device, curve in enumerate(timeline.memory):
        for at_seconds, n_bytes in zip(curve.at_seconds, curve.n_bytes, strict=True):
            yield {
                "ph": "C",
                "name": f"memory of device {device}",
                "pid": process,
                "tid": device,
                "ts": float(at_seconds) * _MICRO,
                "args": {"bytes": float(n_bytes)},
            }


def _process(process: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
    sort = {"sort_index": process}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": sort}


def _thread(process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": name}}


def _complete(
    process: int, thread: int, name: str, category: str, span: Any, details: Mapping[str, Any]
) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": thread,
        "ts": span.start_seconds * _MICRO,
        "dur": (span.end_seconds - span.start_seconds) * _MICRO,
        "args": dict(details),
    }
