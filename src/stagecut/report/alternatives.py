"""The ways to run a step that the search weighed, as a table."""

from __future__ import annotations

import math
from collections import Counter

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from stagecut.ir.plan import Alternative, Plan
from stagecut.report.units import bytes_text, percent_text, seconds_text

SHOWN = 12
"""Rows of the table; the plan has them all."""


def alternatives_table(plan: Plan) -> Group:
    """The best first; then how many more were weighed, and why they were not taken."""
    table = Table(
        title="weighed", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
        expand=True, padding=(0, 1), collapse_padding=True, header_style="dim",
    )  # fmt: skip
    table.add_column("schedule", no_wrap=True)
    for heading in ("copies", "stages", "batches", "step", "memory", "bubble"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", ratio=1, no_wrap=True)
    shown = plan.alternatives[:SHOWN]
    for row in shown:
        table.add_row(*_cells(row), style="bold green" if row.note == "chosen" else "")
    lines = ["copies: replicas of the pipeline; batches: micro-batches × rows of each"]
    lines += ["*: blocks recomputed where memory lacks"] * any(row.recompute for row in shown)
    rest = Counter(_kind(row) for row in plan.alternatives[SHOWN:])
    lines += [f"and {count} more: {kind}" for kind, count in rest.items()]
    if reason := next((row.note for row in plan.alternatives if ": device" in row.note), None):
        lines.append(f"too big, the first of them: {reason.partition(': ')[2]}")
    return Group(table, *(Text(f"   {line}", style="dim") for line in lines))


def _cells(row: Alternative) -> list[str]:
    known, ran = math.isfinite(row.step_seconds), row.memory_bytes > 0
    step = f"{'' if ran else '≥'}{seconds_text(row.step_seconds)}" if known else ""
    return [
        row.schedule + " *" * row.recompute,
        str(row.replicas),
        str(row.n_stages),
        f"{row.n_microbatches} × {row.rows}",
        step,
        bytes_text(row.memory_bytes) if ran else "",
        percent_text(row.bubble) if ran else "",
        f"+{row.note.removesuffix(' slower')}" if row.note.endswith("slower") else _kind(row),
    ]


def _kind(row: Alternative) -> str:
    """Why it was not taken, in few words."""
    if row.note.endswith("slower"):
        return "slower"
    return row.note.partition(":")[0].replace("does not fit", "too big")
