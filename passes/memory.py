"""What each stage of an assignment holds, costs, sends and receives."""

from __future__ import annotations

from collections.abc import Sequence

from stagecut.ir.device import Cluster
from stagecut.ir.graph import Graph, op_refs
from stagecut.ir.plan import StageMemory, StageReport, Transfer
from stagecut.ir.problem import IntArray, Problem
from stagecut.ir.solution import Evaluation
from stagecut.passes.groups import Clustering
from stagecut.passes.modules import module_names
from stagecut.passes.problem import stages_of_ops
from stagecut.passes.propagate import owned_weights
from stagecut.passes.states import weight_bytes
from stagecut.passes.transfers import transfers


def describe_stages(
    graph: Graph,
    problem: Problem,
    clustering: Clustering,
    stage: IntArray,
    evaluation: Evaluation,
    cluster: Cluster,
    device_of_stage: Sequence[int],
    optimizer: str,
    training: bool,
) -> tuple[StageReport, ...]:
    """One report a stage; seconds and bytes are of one micro-batch.

    `stage` (shape [clusters]) has the stage of each cluster, `device_of_stage` (shape [k]) the
    rank that owns each stage.
    """
    stages = stages_of_ops(graph, clustering, stage)
    moved = transfers(graph, stages, training)
    scopes = [op.scope for op in graph.ops]
    reports = []
    for index in range(problem.n_stages):
        ops = [op for op, where in zip(graph.ops, stages, strict=True) if index in where]
        costs = [op.cost for op in ops if op.cost is not None]
        sends = tuple(t for t in moved if t.source == index)
        receives = tuple(t for t in moved if t.destination == index)
        rank = device_of_stage[index]
        reports.append(
            StageReport(
                index=index,
                device=cluster.devices[rank].name,
                rank=rank,
                modules=tuple(module_names(scopes, stages, index)),
                ops=tuple(op.name for op in ops),
                forward_seconds=float(evaluation.forward_seconds[index]),
                backward_seconds=float(evaluation.backward_seconds[index]),
                send_seconds=float(evaluation.send_seconds[index]),
                receive_seconds=float(evaluation.receive_seconds[index]),
                sync_seconds=float(evaluation.sync_seconds[index]),
                flops_forward=sum(cost.forward.flops for cost in costs),
                flops_backward=sum(cost.backward.flops for cost in costs),
                memory=_memory(
                    graph, problem, evaluation, index, stages, (*sends, *receives), optimizer,
                    training,
                ),
                sends=sends,
                receives=receives,
            )
        )  # fmt: skip
    return tuple(reports)


def _memory(
    graph: Graph, problem: Problem, evaluation: Evaluation, index: int,
    stages: Sequence[Sequence[int]], moved: Sequence[Transfer], optimizer: str, training: bool,
) -> StageMemory:  # fmt: skip
    held = [
        weight_bytes(weight, optimizer, training)
        for weight in graph.weights
        if weight.name in _weights_of_stage(graph, stages, index)
    ]
    weights, gradients, state = (sum(column) for column in zip((0, 0, 0), *held, strict=True))
    return StageMemory(
        weights=weights,
        gradients=gradients,
        optimizer=state,
        saved_per_microbatch=float(evaluation.saved_bytes[index]),
        in_flight=int(problem.in_flight[index]),
        boundary=sum(t.n_bytes + t.gradient_bytes for t in moved),
        workspace=float(evaluation.workspace_bytes[index]),
        limit=float(problem.memory_limit_bytes[index]),
    )


def _weights_of_stage(graph: Graph, stages: Sequence[Sequence[int]], index: int) -> frozenset[str]:
    here = (op for op, where in zip(graph.ops, stages, strict=True) if index in where)
    named = {
        name
        for op in here
        for name in (
            *(ref.name for ref in op_refs(op)),
            *(weight.name for _, weight in owned_weights(op, graph.weights)),
        )
    }
    return frozenset(named & {weight.name for weight in graph.weights})
