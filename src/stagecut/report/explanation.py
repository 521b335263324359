"""Why a cut is where it is: what one group of ops over each boundary of a stage would change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stagecut.ir.explanation import Explanation, Shift
from stagecut.ir.plan import Plan
from stagecut.report.plan import WIDTH, render
from stagecut.report.units import bytes_text, percent_text, seconds_text

_NOTHING = 1e-9
"""Changes below this share of the bottleneck are rounding."""


def explanation_table(plan: Plan, found: Explanation, names: Mapping[Shift, str]) -> RenderableType:
    """The stage, its moves as a table, and what follows; `names` of what moves."""
    if plan.n_stages == 1:
        return Group(_stage(plan, found), Text("It is the only one: nothing was cut."))
    table = Table(
        title="one group of ops moved over a boundary, the best each way", title_justify="left",
        title_style="bold", box=box.SIMPLE_HEAD, expand=True, padding=(0, 1),
        collapse_padding=True, header_style="dim",
    )  # fmt: skip
    table.add_column("stages", no_wrap=True)
    table.add_column("what would move", ratio=1, overflow="fold")
    for heading in ("loads then", "bottleneck", "bytes cut"):
        table.add_column(heading, justify="right", no_wrap=True)
    for source, destination in _ways(plan, found.stage):
        table.add_row(*_row(found, source, destination, names))
    return Group(_stage(plan, found), Text(), table, _conclusion(plan, found, names))


def render_explanation(
    plan: Plan, found: Explanation, names: Mapping[Shift, str], width: int = WIDTH
) -> str:
    """The same as plain text of at most `width` columns."""
    return render(explanation_table(plan, found, names), width)


def _ways(plan: Plan, k: int) -> Iterator[tuple[int, int]]:
    """Over the first boundary and the last, out of the stage and into it."""
    for other in (k - 1, k + 1):
        if 0 <= other < plan.n_stages:
            yield k, other
            yield other, k


def _stage(plan: Plan, found: Explanation) -> Text:
    stage = plan.stages[found.stage]
    standing = (
        "the bottleneck"
        if found.bottleneck_stage == found.stage
        else f"the bottleneck is stage {found.bottleneck_stage}, "
        f"{seconds_text(found.bottleneck_seconds)}"
    )
    return Text.assemble(
        (f"stage {found.stage} of 0 to {plan.n_stages - 1} on {stage.device}", "bold"),
        f": load {seconds_text(found.load_seconds)} ({standing}), of which computing "
        f"{seconds_text(found.compute_seconds)}, transfers {seconds_text(found.transfer_seconds)}; "
        f"memory {bytes_text(stage.memory.total)} of {bytes_text(stage.memory.limit)}",
    )


def _row(
    found: Explanation, source: int, destination: int, names: Mapping[Shift, str]
) -> list[Text]:
    way = Text(f"{source} → {destination}")
    for shift in found.shifts:
        if (shift.source, shift.destination) == (source, destination):
            return [way, _what(shift, names), _loads(shift), _bottleneck(shift), _bytes(shift)]
    held = f"nothing: whatever leaves stage {source} this way would take more along"
    return [way, Text(held, "dim"), Text(), Text(), Text()]


def _what(shift: Shift, names: Mapping[Shift, str]) -> Text:
    text = Text(names[shift])
    for fault in shift.faults:
        text.append(f"\nnot possible: {fault}", "red")
    return text


def _loads(shift: Shift) -> Text:
    loads = [
        (shift.source, shift.source_seconds),
        (shift.destination, shift.destination_seconds),
    ]
    return Text("\n".join(f"{stage}: {seconds_text(load)}" for stage, load in sorted(loads)))


def _bottleneck(shift: Shift) -> Text:
    now = shift.bottleneck_seconds - shift.change_seconds
    change = shift.change_seconds / now if now else 0.0
    if abs(change) < _NOTHING:
        return Text("as now", "dim")
    sign, style = ("+", "yellow") if change > 0 else ("−", "green")
    return Text.assemble(
        seconds_text(shift.bottleneck_seconds), "\n", (f"{sign}{percent_text(abs(change))}", style)
    )


def _bytes(shift: Shift) -> Text:
    if not shift.bytes_cut_change:
        return Text("as now", "dim")
    sign = "+" if shift.bytes_cut_change > 0 else "−"
    return Text(f"{sign}{bytes_text(abs(shift.bytes_cut_change))}")


def _conclusion(plan: Plan, found: Explanation, names: Mapping[Shift, str]) -> Text:
    """What the moves say together."""
    better = [s for s in found.shifts if s.change_seconds < -_NOTHING * found.bottleneck_seconds]
    for shift in better:
        what = f"Moving {names[shift]} to stage {shift.destination}"
        if shift.faults:
            return Text(f"{what} would lower the bottleneck, and is not possible.")
        share = percent_text(-shift.change_seconds / found.bottleneck_seconds)
        return Text(f"{what} would lower the bottleneck by {share}: plan.move tries it.", "yellow")
    proof = (
        "no other cut does either: this one is proved optimal"
        if plan.optimal
        else f"no cut lowers it by more than {percent_text(_share(plan))}, which the bound proves"
    )
    return Text(f"No move over a boundary of this stage lowers the bottleneck; {proof}.")


def _share(plan: Plan) -> float:
    """Of the bottleneck, what is above the lower bound."""
    bottleneck = plan.bottleneck_seconds
    return 1 - min(plan.lower_bound_seconds / bottleneck, 1.0) if bottleneck else 0.0
