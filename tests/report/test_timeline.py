from __future__ import annotations

import json
import math
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from stagecut.report import render_text, timeline_text, to_trace
from tests.conftest import Golden
from tests.report.sample import sample_plan, sample_timeline


def test_a_step_as_text(golden: Golden) -> None:
    golden("timeline.txt", timeline_text(sample_timeline(), width=100).plain)


def test_a_plan_ends_with_its_timeline(golden: Golden) -> None:
    text = render_text(sample_plan(), timeline=sample_timeline())
    assert text.splitlines()[-4].startswith("one step")
    assert text.splitlines()[-3].startswith("device 0  0")


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "forward"])
def test_no_line_is_wider_than_asked(width: int, schedule: str) -> None:
    timeline = sample_timeline(schedule, n_stages=3, n_microbatches=12)
    lines = timeline_text(timeline, width).plain.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[-1].endswith("a column")


def test_work_too_short_for_columns_is_shaded(golden: Golden) -> None:
    timeline = sample_timeline("gpipe", n_stages=4, n_microbatches=200)
    text = timeline_text(timeline, width=80).plain
    golden("timeline_shaded.txt", text)
    for device, row in enumerate(text.splitlines()[:4]):
        shares = ["·░▒▓█".index(mark) / 4 for mark in row[10:].split("  ")[0]]
        busy = float(timeline.compute_seconds[device]) / timeline.step_seconds
        assert sum(shares) / len(shares) == pytest.approx(busy, abs=1 / 8)


def test_columns_show_each_share_of_the_step() -> None:
    """On 1,000 columns a letter's count is its share of the step, to a column at each end."""
    timeline = sample_timeline()
    row = timeline_text(timeline, width=1000).plain.splitlines()[0][10:]
    columns = len(row.rsplit("  ", 1)[0])
    forward = row[:columns].count("0") / columns
    backward = row[:columns].count("a") / columns
    assert forward == pytest.approx(1.0 / timeline.step_seconds, abs=3 / columns)
    assert backward == pytest.approx(2.0 / timeline.step_seconds, abs=3 / columns)


def test_the_trace_follows_the_trace_event_format() -> None:
    predicted, measured = sample_timeline("gpipe"), sample_timeline("1f1b")
    trace = to_trace({"predicted": predicted, "measured": measured})
    json.loads(json.dumps(trace, allow_nan=False))
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        _check_event(event)
    _check_no_overlap(trace["traceEvents"])
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert {"predicted: gpipe", "measured: 1f1b"} <= names


def test_the_trace_holds_every_compute_at_its_time() -> None:
    timeline = sample_timeline(n_stages=3, n_microbatches=5)
    events = [e for e in to_trace({"p": timeline})["traceEvents"] if e["ph"] == "X"]
    drawn = {e["name"]: e for e in events if e["cat"] in ("forward", "backward")}
    assert len(drawn) == 3 * 5 * 2
    for span in timeline.spans:
        event = drawn[f"{span.stage}{span.phase.value}{span.microbatch}"]
        assert event["tid"] == span.device
        assert event["ts"] == pytest.approx(span.start_seconds * 1e6)
        assert event["ts"] + event["dur"] == pytest.approx(span.end_seconds * 1e6)


def _check_event(event: dict[str, Any]) -> None:
    """Field by field what the format's description asks of the kinds of event we write."""
    assert event["ph"] in ("X", "M", "C")
    assert isinstance(event["name"], str) and event["name"]
    assert isinstance(event["pid"], int)
    assert isinstance(event["tid"], int)
    assert isinstance(event["args"], dict)
    if event["ph"] == "M":
        assert event["name"] in ("process_name", "process_sort_index", "thread_name")
        assert set(event["args"]) <= {"name", "sort_index"}
    else:
        assert math.isfinite(event["ts"]) and event["ts"] >= 0
    if event["ph"] == "X":
        assert math.isfinite(event["dur"]) and event["dur"] >= 0
    if event["ph"] == "C":
        assert all(isinstance(series, float) for series in event["args"].values())


def _check_no_overlap(events: list[dict[str, Any]]) -> None:
    """Complete events of one thread must nest; ours follow one another."""
    by_thread: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            by_thread[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert by_thread
    for spans in by_thread.values():
        spans.sort()
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(spans))
