"""Graph and stages to programs: code generation's one door."""

from __future__ import annotations

from collections.abc import Sequence

from stagecut.codegen.source import class_name, stage_source
from stagecut.codegen.wiring import StageWiring, wire
from stagecut.ir.graph import Graph
from stagecut.ir.program import PipelineProgram, StageProgram


def generate(
    graph: Graph, stages_of_ops: Sequence[tuple[int, ...]], n_stages: int
) -> PipelineProgram:
    """Every stage as source text, and how the stages are wired.

    Args:
        graph: The traced model.
        stages_of_ops: For each op, the stages that run it.
        n_stages: The number of stages.

    Raises:
        PlanError: the stages do not form a pipeline.
    """
    wiring = wire(graph, stages_of_ops, n_stages)
    draws = {op.name: i for i, op in enumerate(op for op in graph.ops if op.effects.random)}
    return PipelineProgram(
        tuple(_program(graph, stage, n_stages, draws) for stage in wiring.stages),
        graph.outputs,
        wiring.deliveries,
        wiring.edges,
        wiring.output_ports,
    )


def _program(
    graph: Graph, stage: StageWiring, n_stages: int, draws: dict[str, int]
) -> StageProgram:
    weights = {weight.name: weight for weight in graph.weights}
    return StageProgram(
        stage.index,
        class_name(stage.index),
        stage_source(graph, stage, n_stages, draws),
        stage.inputs,
        stage.results,
        tuple(weights[name] for name in stage.weights),
    )
