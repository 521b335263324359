"""A whole plan for a reader: what it is for, what goes where, how good it is, and what to know."""

from __future__ import annotations

import io
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from stagecut.ir.device import CUDNN, Cluster
from stagecut.ir.plan import Plan
from stagecut.ir.timeline import Timeline
from stagecut.report.alternatives import alternatives_table
from stagecut.report.tables import (
    memory_table,
    placement_table,
    time_table,
    transfer_table,
    trial_table,
)
from stagecut.report.timeline import timeline_text
from stagecut.report.units import bytes_text, percent_text, seconds_text

WIDTH = 110
"""Columns of a plan printed to no terminal."""


def plan_table(plan: Plan, timeline: Timeline | None = None) -> RenderableType:
    """The plan as something rich prints: header, tables, verdict, notes and the step's timeline."""
    parts: list[RenderableType] = [header(plan), Text()]
    parts += [placement_table(plan), time_table(plan), memory_table(plan)]
    if plan.n_stages > 1:
        parts.append(transfer_table(plan))
    parts.append(verdict(plan))
    if plan.trials:
        parts += [Text(), trial_table(plan)]
    if plan.alternatives:
        parts += [Text(), alternatives_table(plan)]
    if plan.notes:
        parts += [Text("notes", style="bold"), *(Text(f" • {note}") for note in plan.notes)]
    if timeline is not None:
        parts += [Text(), Text("one step", style="bold"), _Drawn(timeline)]
    return Group(*parts)


def render_text(plan: Plan, width: int = WIDTH, timeline: Timeline | None = None) -> str:
    """The plan as plain text of at most `width` columns, without colours."""
    return render(plan_table(plan, timeline), width)


def render_html(plan: Plan, width: int = 130, timeline: Timeline | None = None) -> str:
    """The plan as one self-contained HTML page."""
    console = Console(record=True, file=io.StringIO(), width=width, force_terminal=True)
    console.print(plan_table(plan, timeline))
    return console.export_html(inline_styles=True)


def header(plan: Plan) -> Text:
    """What was planned, for which devices, under which schedule, and how it was traced."""
    stages = _count(plan.n_stages, "stage")
    microbatches = _count(plan.n_microbatches, "micro-batch")
    copies = "" if plan.replicas == 1 else f" in each of {plan.replicas} replicas"
    lines = [
        f"{plan.graph.name or 'model'}: {_count(len(plan.graph.ops), 'op')} in {stages} "
        f"on {cluster_text(plan.cluster)}",
        f"schedule {plan.schedule_name}, {microbatches} a step{copies}, "
        f"optimizer {plan.optimizer}{_tf32(plan.cluster)}; "
        f"traced by {plan.frontend}; {times_text(plan)}",
    ]
    return Text.assemble((lines[0], "bold"), "\n", (lines[1], "dim"))


def times_text(plan: Plan) -> str:
    """How much of the ops' time is measured."""
    costs = [op.cost for op in plan.graph.ops if op.cost is not None]
    seconds = [cost.forward.seconds + cost.backward.seconds for cost in costs]
    timed = sum(s for s, c in zip(seconds, costs, strict=True) if c.origin == "measured")
    if not timed:
        return "times by roofline"
    return f"{percent_text(timed / sum(seconds))} of the ops' time measured"


def _tf32(cluster: Cluster) -> str:
    """How float32 products run, where the user said so."""
    said = {device.tf32 for device in cluster.devices} - {CUDNN}
    return "".join(f", float32 products in {'TF32' if classes else 'float32'}" for classes in said)


def cluster_text(cluster: Cluster) -> str:
    """`4 × A100-80GB in one node (assumed)`."""
    counts = [
        f"{len(list(run))} × {name}"
        for name, run in groupby(cluster.devices, key=lambda device: device.name)
    ]
    n_nodes = -(-len(cluster.devices) // cluster.devices_per_node)
    where = "in one node" if n_nodes == 1 else f"in {n_nodes} nodes of {cluster.devices_per_node}"
    assumed = " (assumed: no cluster was given)" if cluster.assumed else ""
    return f"{', '.join(counts)} {where}{assumed}"


def verdict(plan: Plan) -> Text:
    """How good the cut is: bottleneck, lower bound, gap; then the step it leads to."""
    slowest = max(plan.stages, key=lambda stage: stage.seconds)
    device = plan.device_of_stage
    sent = [t for s in plan.stages for t in s.sends if device[t.source] != device[t.destination]]
    cut = sum(t.n_bytes + t.gradient_bytes for t in sent)
    text = Text.assemble(
        "bottleneck ", (seconds_text(plan.bottleneck_seconds), "bold"), f" (stage {slowest.index})",
        ", lower bound ", (seconds_text(plan.lower_bound_seconds), "bold"),
        ", gap ", (percent_text(plan.gap), "bold green" if plan.gap <= 0.01 else "bold yellow"),
        (" (optimal: proved)", "green") if plan.optimal else "",
        "\nstep ", (seconds_text(plan.step_seconds), "bold"),
        ", bubble ", (percent_text(plan.bubble), "bold"),
        ", bytes cut ", (bytes_text(cut), "bold"), " a micro-batch",
    )  # fmt: skip
    if plan.stopped_by_clock:
        text.append("\nthe time limit ended the search: a rerun may find another plan", "yellow")
    if over := [str(stage.index) for stage in plan.stages if not stage.memory.fits]:
        which = "every stage" if len(over) == plan.n_stages else f"stage {', '.join(over)}"
        text.append(f"\ndoes not fit: {which} is over its memory limit", "bold red")
    return text


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A timeline as wide as the console it is printed on."""

    timeline: Timeline

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield timeline_text(self.timeline, options.max_width)


def _count(number: int, word: str) -> str:
    plural = "es" if word.endswith("ch") else "s"
    return f"{number:,} {word}{'' if number == 1 else plural}"


def render(renderable: RenderableType, width: int) -> str:
    """As plain text of at most `width` columns, without colours."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(renderable)
    lines = (line.rstrip() for line in capture.get().splitlines())
    return "\n".join(lines) + "\n"
