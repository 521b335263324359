"""The plan a user holds: data, and the methods that hand it to the rooms."""

from __future__ import annotations

import json
from pathlib import Path

import networkx
from torch import nn

from stagecut.codegen.folder import write_folder
from stagecut.explaining import explained
from stagecut.ir import plan as ir
from stagecut.ir.errors import PlanError
from stagecut.ir.graph import reads
from stagecut.ir.plan import StageReport, dump_plan, load_plan
from stagecut.ir.program import PipelineProgram
from stagecut.ir.timeline import Timeline
from stagecut.opaque import opaque_modules
from stagecut.placing import changes, moved
from stagecut.prediction import predict, program_of
from stagecut.report.explanation import render_explanation
from stagecut.report.plan import render_html, render_text
from stagecut.report.trace import to_trace
from stagecut.tensors import check_weights, weights_of


class Plan:
    """How a model is cut, what every stage costs, and how good the cut is.

    Made by `partition` or `Plan.load`. `data` is the frozen value behind it (`stagecut.ir.plan`).
    """

    def __init__(self, data: ir.Plan) -> None:
        self.data = data

    @property
    def stages(self) -> tuple[StageReport, ...]:
        """What each stage runs, holds, costs, sends and receives."""
        return self.data.stages

    @property
    def n_stages(self) -> int:
        """The number of stages."""
        return self.data.n_stages

    @property
    def bottleneck_seconds(self) -> float:
        """The largest stage load, for one micro-batch; of a folded plan, the largest device's."""
        return self.data.bottleneck_seconds

    @property
    def lower_bound_seconds(self) -> float:
        """No cut of this model into as many stages has a smaller bottleneck.

        Of a folded plan: no placement on as many devices has.
        """
        return self.data.lower_bound_seconds

    @property
    def gap(self) -> float:
        """bottleneck / lower bound - 1."""
        return self.data.gap

    @property
    def step_seconds(self) -> float:
        """Of one step of all micro-batches, simulated."""
        return self.data.step_seconds

    @property
    def bubble(self) -> float:
        """The share of the devices' time in which they wait."""
        return self.data.bubble

    @property
    def fits(self) -> bool:
        """Whether every stage's memory is within its device's."""
        return all(stage.memory.fits for stage in self.stages)

    def __str__(self) -> str:
        return render_text(self.data, timeline=self.timeline())

    def __repr__(self) -> str:
        return (
            f"<Plan of {self.data.graph.name}: {self.n_stages} stages, "
            f"bottleneck {self.bottleneck_seconds:.3g} s, gap {self.gap:.2%}>"
        )

    def timeline(self) -> Timeline:
        """The simulated step."""
        return predict(self.data)

    def to_html(self, path: str | Path) -> None:
        """Writes the plan as one HTML page."""
        Path(path).write_text(render_html(self.data, timeline=self.timeline()))

    def to_trace(self, path: str | Path, measured: Timeline | None = None) -> None:
        """Writes the simulated step as Chrome trace events, for Perfetto.

        A measured one, of `pipe.last_timeline()`, is drawn below it on the same axes.
        """
        timelines = {"predicted": self.timeline()}
        if measured is not None:
            timelines["measured"] = measured
        Path(path).write_text(json.dumps(to_trace(timelines)))

    def programs(self) -> PipelineProgram:
        """The generated stages: source text and wiring."""
        return program_of(self.data)

    def to_networkx(self) -> networkx.MultiDiGraph:
        """The graph of ops: nodes with `stages`, `scope` and `target`, an edge a value read."""
        graph = networkx.MultiDiGraph(name=self.data.graph.name)
        makers: dict[str, str] = {}
        for op, stages in zip(self.data.graph.ops, self.data.stages_of_ops, strict=True):
            graph.add_node(op.name, stages=stages, scope=op.scope, target=op.target)
            for value in reads(op):
                if value in makers:
                    graph.add_edge(makers[value], op.name, value=value)
            makers |= {value.name: op.name for value in op.results}
        return graph

    def move(self, module: str, *, stage: int) -> Plan:
        """The plan with one module in another stage, scored anew; this plan is left as it is.

        Raises:
            ArgumentError: there is no such module or stage.
            PlanError: the stages would no longer form a pipeline, or a pin would not be kept.
        """
        return Plan(moved(self.data, module, stage))

    def explain(self, k: int) -> str:
        """Why stage `k` is cut where it is: what one group of ops over a boundary would change.

        A move that a pin bars is shown with the pin.

        Raises:
            ArgumentError: there is no such stage.
        """
        return render_explanation(self.data, *explained(self.data, k))

    def diff(self, other: Plan) -> str:
        """What another plan of the same model does differently, one line each."""
        ours, theirs = self.data, other.data
        lines = [
            f"{module}: stage {before} -> {after}"
            for module, (before, after) in changes(ours, theirs).items()
        ]
        lines += [
            f"{name}: {old:.4g} -> {new:.4g} s"
            for name, old, new in (
                ("bottleneck", ours.bottleneck_seconds, theirs.bottleneck_seconds),
                ("step", ours.step_seconds, theirs.step_seconds),
            )
            if old != new
        ]
        return "\n".join(lines) or "no difference"

    def verify(self, model: nn.Module) -> None:
        """Returns if the model's weights are those that were planned.

        Raises:
            PlanError: every name, shape and dtype that differs.
        """
        check_weights(self.data, weights_of(self.data, model))

    def save(self, path: str | Path) -> None:
        """Writes the plan as JSON; `Plan.load` reads it."""
        Path(path).write_text(dump_plan(self.data))

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Reads a plan that `save` wrote.

        Raises:
            PlanError: the file is missing, not a plan, or was changed.
        """
        try:
            text = Path(path).read_text()
        except OSError as error:
            raise PlanError(f"no plan at {path}: {error.strerror}") from error
        return Plan(load_plan(text))

    def export(self, folder: str | Path, model: nn.Module, *, allow_imports: bool = False) -> None:
        """Writes one `.py` and one `.safetensors` a stage, which need torch alone.

        Args:
            folder: Where to; an earlier export there is replaced.
            model: Whose weights to write.
            allow_imports: Stages may import the classes of modules that run as they are, because
                they could not be traced; the folder then needs their code too.

        Raises:
            PlanError: the model is not the one that was planned, or its weights have no values.
            UnsupportedError: stages call modules that run as they are, and may not import them,
                or they hold what cannot be written down.
        """
        tensors = weights_of(self.data, model)
        check_weights(self.data, tensors)
        modules = opaque_modules(self.data.graph, model) if allow_imports else None
        write_folder(Path(folder), dump_plan(self.data), self.programs(), tensors, modules)
