"""`stagecut run --compare`: what a plan predicted of each stage, beside what was measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from rich import box
from rich.table import Table

from stagecut.ir.timeline import Timeline, TransferSpan
from stagecut.report.units import bytes_text, seconds_text


@dataclass(frozen=True, slots=True)
class Figures:
    """What one stage takes; seconds of one micro-batch but for `idle`."""

    forward: float
    backward: float
    send: float | None
    """All that it sends, activations and gradients; None where it was not seen."""
    idle: float
    """Of its device, in a step until the last backward."""
    optimizer: float
    """Of its device, in a step."""
    peak_bytes: float
    """Of its device, all its stages together."""


def figures(
    timelines: Sequence[Timeline],
    peak_bytes: Sequence[float],
    optimizer_seconds: Sequence[float],
    *,
    recorded: bool,
) -> tuple[Figures, ...]:
    """Each stage's figures in some steps of one plan.

    `peak_bytes` and `optimizer_seconds` have shape [d]: a device's.

    Computes and messages are medians. Of recorded messages only those count that an idle receiver
    waited for: nobody sees when others arrived.
    """
    devices = timelines[0].device_of_stage
    computes, sends = _computes(timelines), _sends(timelines, recorded)
    return tuple(
        Figures(
            forward=median(computes[stage, True] or [0.0]),
            backward=median(computes[stage, False] or [0.0]),
            send=sends.get(stage),
            idle=mean(_idle_seconds(timeline, device) for timeline in timelines),
            optimizer=optimizer_seconds[device],
            peak_bytes=peak_bytes[device],
        )
        for stage, device in enumerate(devices)
    )


def comparison(predicted: Sequence[Figures], measured: Sequence[Figures]) -> Table:
    """A row a figure of each stage: predicted, measured, and by how much the prediction errs."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("stage", "", "predicted", "measured", "error"):
        table.add_column(heading, justify="left" if not heading else "right")
    rows: tuple[tuple[str, Callable[[Figures], float | None], Callable[[float], str]], ...] = (
        ("forward", lambda f: f.forward, seconds_text),
        ("backward", lambda f: f.backward, seconds_text),
        ("send", lambda f: f.send, seconds_text),
        ("idle, a step", lambda f: f.idle, seconds_text),
        ("optimizer, a step", lambda f: f.optimizer, seconds_text),
        ("peak memory", lambda f: f.peak_bytes, bytes_text),
    )
    for stage, (expected, found) in enumerate(zip(predicted, measured, strict=True)):
        for number, (name, of, text) in enumerate(rows):
            guess, truth = of(expected), of(found)
            cells = ["-" if item is None else text(item) for item in (guess, truth)]
            table.add_row(
                "" if number else str(stage), name, *cells, error_text(guess, truth),
                end_section=number == len(rows) - 1,
            )  # fmt: skip
    return table


def error_text(predicted: float | None, measured: float | None) -> str:
    """`+12.3%` where the prediction is the greater; a dash where nothing was measured."""
    return f"{predicted / measured - 1:+.1%}" if measured and predicted is not None else "-"


def optimizer_seconds(timeline: Timeline) -> tuple[float, ...]:
    """Shape [d]: the optimizer's steps of each device's stages."""
    taken = [0.0] * timeline.n_devices
    for span in timeline.tail:
        if span.kind == "optimizer":
            taken[span.device] += span.end_seconds - span.start_seconds
    return tuple(taken)


def _idle_seconds(timeline: Timeline, device: int) -> float:
    return timeline.pipeline_seconds - float(timeline.compute_seconds[device])


def _computes(timelines: Sequence[Timeline]) -> dict[tuple[int, bool], list[float]]:
    """Seconds of every forward, and of every backward with its two halves added up, by stage."""
    found: dict[tuple[int, bool], list[float]] = defaultdict(list)
    for timeline in timelines:
        seconds: dict[tuple[int, bool, int], float] = defaultdict(float)
        for span in timeline.spans:
            key = span.stage, span.phase.value == "F", span.microbatch
            seconds[key] += span.end_seconds - span.start_seconds
        for (stage, forward, _), taken in seconds.items():
            found[stage, forward].append(taken)
    return found


def _sends(timelines: Sequence[Timeline], recorded: bool) -> dict[int, float]:
    """Seconds of one micro-batch's messages, by the stage that sends them."""
    taken: dict[tuple[int, int, str], list[float]] = defaultdict(list)
    for timeline in timelines:
        for span in timeline.transfers:
            if not recorded or _awaited(timeline, span):
                key = span.message.source, span.message.destination, span.message.phase.value
                taken[key].append(span.end_seconds - span.start_seconds)
    found: dict[int, float] = defaultdict(float)
    for (source, *_), seconds in taken.items():
        found[source] += median(seconds)
    return found


def _awaited(timeline: Timeline, span: TransferSpan) -> bool:
    """Whether the receiver had nothing else to do from when the message was sent until it came."""
    spans = timeline.spans
    there = spans.device == span.destination_device
    before = spans.end_seconds[there & (spans.start_seconds < span.end_seconds)]
    return float(before.max(initial=0.0)) <= span.start_seconds < span.end_seconds
