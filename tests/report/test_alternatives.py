"""The search's table at the width of a plain terminal."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from stagecut.ir.plan import Alternative
from stagecut.report.alternatives import SHOWN, alternatives_table
from tests.report.sample import sample_plan

CHOSEN = Alternative("dualpipe_v", 4, 16, 512, 2, True, 7.28, 61.6 * 2**30, 0.0198, "chosen")
SLOWER = replace(CHOSEN, step_seconds=7.37, note="1.2% slower", recompute=False)
BOUNDED = replace(SLOWER, memory_bytes=0.0, note="no faster: takes this at least")
TOO_BIG = replace(BOUNDED, step_seconds=float("inf"),
                  note="does not fit: device 3 needs 90.1 GiB of 80.0")  # fmt: skip


def drawn(*rows: Alternative) -> str:
    console = Console(width=80, file=io.StringIO())
    console.print(alternatives_table(replace(sample_plan(), alternatives=rows)))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_nothing_is_cut_off_at_80_columns() -> None:
    text = drawn(CHOSEN, SLOWER, BOUNDED, TOO_BIG)
    assert "…" not in text
    for said in ("dualpipe_v *", "512 × 2", "chosen", "+1.2%", "≥7.37 s", "no faster", "too big",
                 "device 3 needs 90.1 GiB", "*: blocks recomputed"):  # fmt: skip
        assert said in text


def test_what_is_not_shown_is_counted() -> None:
    text = drawn(*([CHOSEN] * SHOWN), SLOWER, BOUNDED, BOUNDED, TOO_BIG)
    for said in ("1 more: slower", "2 more: no faster", "1 more: too big"):
        assert said in text
