"""A step drawn in text: one row a device, time to the right.

device 0  0000111122223333········aaaaaaaabbbbbbbb···     0 to 9 forward, a to j backward of
device 1  ····0000aaaaaaaa1111bbbbbbbb2222···········     the micro-batch (its last digit)
"""

from __future__ import annotations

import textwrap

import numpy as np
from rich.text import Text

from stagecut.ir.problem import FloatArray, IntArray
from stagecut.ir.timeline import Timeline
from stagecut.report.units import bytes_text, percent_text, seconds_text

_IDLE = "·"
_SHADES = "·░▒▓█"
"""From idle to computing all the time."""
_LETTERS = {"F": "0123456789", "B": "abcdefghij", "I": "abcdefghij", "W": "ABCDEFGHIJ"}
_MEANING = {
    "F": "0-9 forward",
    "B": "a-j backward",
    "I": "a-j backward of inputs",
    "W": "A-J backward of weights",
}
_TAILS = {"reduction": "=", "optimizer": "+"}
_STYLES = {"F": "cyan", "B": "green", "I": "green", "W": "magenta"}


def timeline_text(timeline: Timeline, width: int = 100) -> Text:
    """The step as rows of at most `width` columns, its share of idle time and its legend.

    Every column is the work at the middle of its slice of time, or the share of the slice that is
    work where most of it is shorter than a slice.
    """
    labels = [f"device {device}" for device in range(timeline.n_devices)]
    notes = _notes(timeline)
    n_columns = width - max(map(len, labels)) - max(map(len, notes)) - 4
    if n_columns < 10:
        notes, n_columns = [""] * len(labels), max(width - max(map(len, labels)) - 2, 10)
    shaded = _is_fine(timeline, n_columns)
    row = _shaded_row if shaded else _row
    text = Text(no_wrap=True)
    for device, label in enumerate(labels):
        text.append(f"{label:<{max(map(len, labels))}}  ")
        text.append_text(row(timeline, device, n_columns))
        text.append(f"  {notes[device]}".rstrip() + "\n", "dim")
    meanings = [f"{_SHADES} idle to computing"] if shaded else _meanings(timeline)
    legend = f"{', '.join(meanings)}; {_scale(timeline, n_columns)}"
    text.append("\n".join(textwrap.wrap(legend, width)), "dim")
    return text


def _notes(timeline: Timeline) -> list[str]:
    step = timeline.step_seconds or 1.0
    busy = [f"{percent_text(float(b) / step)} busy" for b in timeline.busy_seconds]
    if not timeline.memory:
        return busy
    peaks = map(bytes_text, timeline.peak_bytes)
    return [f"{share}, {peak}" for share, peak in zip(busy, peaks, strict=True)]


def _row(timeline: Timeline, device: int, n_columns: int) -> Text:
    middles = (np.arange(n_columns) + 0.5) * timeline.step_seconds / n_columns
    row = Text()
    for column, index in enumerate(_computing(timeline, device, middles)):
        if index >= 0:
            phase = str(timeline.spans.phase[index])
            digit = int(timeline.spans.microbatch[index]) % 10
            row.append(_LETTERS[phase][digit], _STYLES[phase])
        else:
            row.append(_tail_mark(timeline, device, float(middles[column])), "dim")
    return row


def _computing(timeline: Timeline, device: int, at_seconds: FloatArray) -> IntArray:
    """The index of the span that a device is in at each time; -1 where it is in none."""
    own = np.flatnonzero(timeline.spans.device == device)
    if not len(own):
        return np.full(len(at_seconds), -1)
    started = np.searchsorted(timeline.spans.start_seconds[own], at_seconds, side="right") - 1
    index = own[np.maximum(started, 0)]
    inside = (started >= 0) & (at_seconds < timeline.spans.end_seconds[index])
    return np.where(inside, index, -1)


def _tail_mark(timeline: Timeline, device: int, at_seconds: float) -> str:
    for span in timeline.tail:
        if span.device == device and span.start_seconds <= at_seconds < span.end_seconds:
            return _TAILS[span.kind]
    return _IDLE


def _is_fine(timeline: Timeline, n_columns: int) -> bool:
    """Whether half of the computes are shorter than a column."""
    if not len(timeline.spans):
        return False
    lengths = timeline.spans.end_seconds - timeline.spans.start_seconds
    return bool(np.median(lengths) < timeline.step_seconds / n_columns)


def _shaded_row(timeline: Timeline, device: int, n_columns: int) -> Text:
    own = timeline.spans.device == device
    starts, ends = timeline.spans.start_seconds[own], timeline.spans.end_seconds[own]
    edges = np.linspace(0.0, timeline.step_seconds, n_columns + 1)
    # Seconds of work done by each edge: rises inside spans, flat between them.
    at_seconds = np.concatenate([[0.0], np.stack([starts, ends], axis=1).ravel()])
    done = np.concatenate([[0.0], np.repeat(np.cumsum(ends - starts), 2)])
    done[1::2] -= ends - starts
    share = np.diff(np.interp(edges, at_seconds, done)) * n_columns / timeline.step_seconds
    shades = np.rint(share * (len(_SHADES) - 1)).astype(int)
    return Text("".join(_SHADES[shade] for shade in shades), "cyan")


def _meanings(timeline: Timeline) -> list[str]:
    phases = {str(phase) for phase in np.unique(timeline.spans.phase)}
    kinds = {span.kind for span in timeline.tail}
    parts = [meaning for phase, meaning in _MEANING.items() if phase in phases]
    parts += ["= gradient sum"] * ("reduction" in kinds) + ["+ optimizer"] * ("optimizer" in kinds)
    return [*parts, "· idle"]


def _scale(timeline: Timeline, n_columns: int) -> str:
    column = seconds_text(timeline.step_seconds / n_columns)
    return f"{seconds_text(timeline.step_seconds)} in all, {column} a column"
