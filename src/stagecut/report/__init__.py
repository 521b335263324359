"""Plans and timelines for readers: text, tables, HTML, Chrome traces."""

from __future__ import annotations

from stagecut.report.plan import plan_table, render_html, render_text

__all__ = ["plan_table", "render_html", "render_text"]
