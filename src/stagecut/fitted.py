"""A problem with its solution, and the graph that it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stagecut.ir.graph import Graph
from stagecut.ir.problem import Problem
from stagecut.ir.solution import Solution
from stagecut.passes import Clustering, Group, modules_recomputed, stages_of_ops
from stagecut.report.units import seconds_text


@dataclass(frozen=True, slots=True)
class Fitted:
    """A cut that was made for the memory of its devices."""

    graph: Graph
    problem: Problem
    clustering: Clustering
    solution: Solution
    notes: tuple[str, ...] = ()

    @property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """For each op of the graph the stages that run it."""
        return stages_of_ops(self.graph, self.clustering, self.solution.assignment.stage)

    @property
    def seconds(self) -> float:
        """The bottleneck."""
        return self.solution.evaluation.bottleneck_seconds


def noted(cut: Fitted, groups: Sequence[Group]) -> Fitted:
    """With a note of what each stage recomputes of `groups`."""
    stages = cut.stages
    mine = [[g for g in groups if k in stages[g[0]]] for k in range(cut.problem.n_stages)]
    notes = []
    for index, modules in enumerate(modules_recomputed(cut.graph, mine)):
        ops = [cut.graph.ops[op] for group in mine[index] for op in group]
        seconds = sum(op.cost.forward.seconds for op in ops if op.cost)
        if modules:
            notes.append(
                f"Stage {index} recomputes {', '.join(modules)} in the backward, "
                f"{seconds_text(seconds)} a micro-batch, to hold less memory."
            )
    return replace(cut, notes=(*cut.notes, *notes))


def instead_of(plain: Fitted, relieved: Fitted) -> Fitted:
    """A cut that recomputes, with what is known of the best that need not."""
    one, other = plain.solution, relieved.solution
    solution = replace(
        other,
        trials=one.trials + other.trials,
        stopped_by_clock=one.stopped_by_clock or other.stopped_by_clock,
    )
    note = (
        f"Nothing has to be recomputed to fit, but the bottleneck would then be "
        f'{seconds_text(plain.seconds)}; recompute="never" takes that.'
    )
    return replace(relieved, solution=solution, notes=(*relieved.notes, note))
