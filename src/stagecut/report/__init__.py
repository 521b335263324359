"""Plans and timelines for readers: text, tables, HTML, Chrome traces."""

from __future__ import annotations

from stagecut.report.plan import plan_table, render_html, render_text
from stagecut.report.summary import summary
from stagecut.report.timeline import timeline_text
from stagecut.report.trace import to_trace

__all__ = ["plan_table", "render_html", "render_text", "summary", "timeline_text", "to_trace"]
