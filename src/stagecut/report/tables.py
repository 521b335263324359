"""The tables of a plan: stages, memory, transfers, methods tried."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from rich import box
from rich.table import Table
from rich.text import Text

from stagecut.ir.plan import Plan, StageMemory, StageReport, Transfer
from stagecut.report.units import bytes_text, flops_text, percent_text, seconds_text


def placement_table(plan: Plan) -> Table:
    """Which modules each stage runs, and where."""
    table = _table("stages")
    table.add_column("stage", justify="right")
    table.add_column("on", no_wrap=True)
    table.add_column("modules", ratio=1, overflow="fold")
    for stage in plan.stages:
        table.add_row(
            str(stage.index), Text(f"{stage.rank}: {stage.device}"), Text(_modules(stage))
        )
    return table


def time_table(plan: Plan) -> Table:
    """What one micro-batch costs each stage, and a step the optimizer."""
    sums = any(stage.sync_seconds for stage in plan.stages)
    headings = ["stage", "forward", "", "backward", "", "transfer"]
    headings += ["grad. sums"] * sums + ["load"]
    steps = any(stage.optimizer_seconds for stage in plan.stages)
    headings += ["optim."] * steps
    table = _table("work, one micro-batch")
    for heading in headings:
        longest = max(map(len, heading.split()), default=0)
        table.add_column(heading, justify="right", overflow="fold", min_width=longest)
    slowest = max(plan.stages, key=lambda stage: stage.seconds, default=None)
    for stage in plan.stages:
        cells = [
            Text(str(stage.index)),
            Text(seconds_text(stage.forward_seconds)),
            Text(flops_text(stage.flops_forward), style="dim"),
            Text(seconds_text(stage.backward_seconds)),
            Text(flops_text(stage.flops_backward), style="dim"),
            Text(seconds_text(stage.send_seconds + stage.receive_seconds)),
        ]
        cells += [Text(seconds_text(stage.sync_seconds))] * sums
        load = Text(seconds_text(stage.seconds), style="bold yellow" if stage is slowest else "")
        step = [Text(seconds_text(stage.optimizer_seconds))] * steps
        table.add_row(*cells, load, *step)
    return table


def memory_table(plan: Plan) -> Table:
    """Each stage's peak, term by term; a stage that does not fit is in red."""
    several = len({stage.rank for stage in plan.stages}) < plan.n_stages
    apart = ", which those of one device reach at different times" if several else ""
    table = _table(f"memory at the peak of each stage{apart}")
    headings = ("weights", "grads", "optim.", "saved × in flight", "buffers", "working")
    for heading in ("stage", *headings, "total", "limit"):
        table.add_column(heading, justify="right", overflow="fold")
    for stage in plan.stages:
        memory = stage.memory
        table.add_row(
            str(stage.index),
            *map(bytes_text, (memory.weights, memory.gradients, memory.optimizer)),
            f"{bytes_text(memory.saved_per_microbatch)} × {memory.in_flight}",
            *map(bytes_text, (memory.boundary, memory.workspace)),
            _total(memory),
            bytes_text(memory.limit),
        )
    if margins := dict.fromkeys(
        stage.memory.margin for stage in plan.stages if stage.memory.margin
    ):
        text = " or ".join(map(bytes_text, margins))
        table.caption = f"and {text} of each device for its allocator, libraries and context\n"
        table.caption_justify = "left"
    return table


def transfer_table(plan: Plan) -> Table:
    """What crosses between each pair of stages for one micro-batch, both ways."""
    table = _table("transfers, one micro-batch")
    table.add_column("stages", no_wrap=True)
    table.add_column("values", ratio=1)
    table.add_column("activations", justify="right", no_wrap=True)
    table.add_column("gradients", justify="right", no_wrap=True)
    for (source, destination), transfers in _by_pair(plan.stages).items():
        table.add_row(
            f"{source} → {destination}",
            Text(_names(transfer.value for transfer in transfers)),
            bytes_text(sum(transfer.n_bytes for transfer in transfers)),
            bytes_text(sum(transfer.gradient_bytes for transfer in transfers)),
        )
    return table


def trial_table(plan: Plan) -> Table:
    """The methods that were tried, side by side; the chosen one is marked."""
    table = _table("methods tried")
    table.add_column("method", no_wrap=True)
    for heading in ("bottleneck", "gap", "bytes cut", "took"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", ratio=1)
    for trial in plan.trials:
        found = math.isfinite(trial.bottleneck_seconds)
        chosen = trial.method == plan.method
        table.add_row(
            Text(trial.method, style="bold green" if chosen else ""),
            seconds_text(trial.bottleneck_seconds) if found else "none found",
            percent_text(_gap(trial.bottleneck_seconds, plan.lower_bound_seconds)) if found else "",
            bytes_text(trial.bytes_cut) if found else "",
            seconds_text(trial.seconds),
            Text("; ".join(filter(None, ["chosen" if chosen else "", trial.note]))),
        )
    return table


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, expand=True,
        padding=(0, 1), collapse_padding=True, header_style="dim",
    )  # fmt: skip


def _modules(stage: StageReport) -> str:
    return _names(stage.modules, limit=6) or f"{len(stage.ops)} ops"


def _names(names: Iterable[str], limit: int = 4) -> str:
    """The first names and the number of the rest."""
    listed = list(names)
    rest = len(listed) - limit
    more = [f"and {rest} more"] if rest > 0 else []
    return ", ".join([*listed[:limit], *more])


def _total(memory: StageMemory) -> Text:
    return Text(bytes_text(memory.total), style="" if memory.fits else "bold red")


def _by_pair(stages: Iterable[StageReport]) -> dict[tuple[int, int], list[Transfer]]:
    pairs: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
    for stage in stages:
        for transfer in stage.sends:
            pairs[transfer.source, transfer.destination].append(transfer)
    return dict(sorted(pairs.items()))


def _gap(achieved: float, bound: float) -> float:
    if achieved <= bound:
        return 0.0
    return achieved / bound - 1 if bound > 0 else math.inf
