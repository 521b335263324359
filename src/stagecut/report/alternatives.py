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
    """The best first; where more were weighed than fit the table, how many and why not."""
    table = Table(
        title="weighed", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
        expand=True, padding=(0, 1), collapse_padding=True, header_style="dim",
    )  # fmt: skip
    table.add_column("schedule")
    for heading in ("replicas", "stages", "micro-batches", "rows", "step", "memory", "bubble"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", ratio=1)
    for row in plan.alternatives[:SHOWN]:
        table.add_row(*_cells(row), style="bold green" if row.note == "chosen" else "")
    rest = Counter(_kind(row) for row in plan.alternatives[SHOWN:])
    lines = [Text(f"   and {count} more: {kind}", style="dim") for kind, count in rest.items()]
    return Group(table, *lines)


def _cells(row: Alternative) -> list[str]:
    known = math.isfinite(row.step_seconds)
    return [
        row.schedule + (", recomputing" if row.recompute else ""),
        str(row.replicas),
        str(row.n_stages),
        str(row.n_microbatches),
        str(row.rows),
        seconds_text(row.step_seconds) if known else "",
        bytes_text(row.memory_bytes) if row.memory_bytes else "",
        percent_text(row.bubble) if row.memory_bytes else "",
        row.note,
    ]


def _kind(row: Alternative) -> str:
    """Why it was not taken, in few words."""
    return "slower" if row.note.endswith("slower") else row.note.partition(":")[0]
