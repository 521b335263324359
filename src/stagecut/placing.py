"""A plan with its ops placed: what every stage then holds, costs, sends, and how long a step is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from stagecut.copies import pipeline_cluster
from stagecut.ir.device import Cluster
from stagecut.ir.errors import ArgumentError, PlanError
from stagecut.ir.plan import Plan, StageReport
from stagecut.ir.problem import IntArray, Problem
from stagecut.ir.solution import Assignment, Evaluation
from stagecut.partitioner import device_loads, evaluate
from stagecut.partitioner.schedules import in_flight
from stagecut.passes import Clustering, annotate, build_problem, describe_stages, stages_of_ops
from stagecut.prediction import predict, timetable_of
from stagecut.timetables import FOLDED


def placed(
    plan: Plan, problem: Problem, clustering: Clustering, stage: IntArray, evaluation: Evaluation
) -> Plan:
    """The plan with cluster c of its problem in stage[c], everything that follows filled in."""
    cluster = pipeline_cluster(plan.cluster, plan.replicas)
    reports = describe_stages(
        plan.graph, problem, clustering, stage, evaluation, cluster, plan.device_of_stage,
        plan.optimizer, plan.graph.training, plan.n_microbatches, dict(plan.step_timings),
    )  # fmt: skip
    made = replace(
        plan,
        stages_of_ops=stages_of_ops(plan.graph, clustering, stage),
        stages=_within_devices(reports, cluster),
        bottleneck_seconds=_bottleneck_seconds(plan, evaluation),
    )
    timeline = predict(made)
    return replace(made, step_seconds=timeline.step_seconds, bubble=timeline.bubble_share)


def _bottleneck_seconds(plan: Plan, evaluation: Evaluation) -> float:
    """The largest stage load; under the folded schedule, the largest of a device's stages."""
    if plan.schedule != FOLDED:
        return evaluation.bottleneck_seconds
    return float(device_loads(evaluation, plan.device_of_stage).max())


def moved(plan: Plan, module: str, stage: int) -> Plan:
    """The plan with one module's ops in another stage, scored anew.

    Raises:
        ArgumentError: no op is of that module, or there is no such stage.
        PlanError: the stages would no longer form a pipeline, or the plan's pins would not be kept;
            says which values would go back, and which pins.
    """
    if type(stage) is not int or not 0 <= stage < plan.n_stages:
        raise ArgumentError(f"there is no stage {stage!r}; the plan has 0 to {plan.n_stages - 1}")
    problem, clustering = posed_again(plan)
    where = stages_of_clusters(plan, clustering)
    chosen = [
        index
        for index, ops in enumerate(clustering.ops_of_cluster)
        if any(_is_under(plan.graph.ops[op].scope, module) for op in ops)
    ]
    if not chosen:
        scopes = sorted({op.scope for op in plan.graph.ops if op.scope})
        raise ArgumentError(f"no op is of module {module!r}; modules are {', '.join(scopes[:12])}")
    where[chosen] = stage
    evaluation = evaluate(problem, Assignment(where))
    if broken := pins_against(plan, problem, clustering, where):
        pins = "; ".join(dict.fromkeys(broken.values()))
        raise PlanError(
            f"moving {module} to stage {stage} would break a pin: {pins}. Plan again with "
            "other pins to have it elsewhere"
        )
    if evaluation.faults:
        raise PlanError(
            f"moving {module} to stage {stage} leaves no pipeline:\n"
            + "\n".join(f"  {_in_words(fault)}" for fault in evaluation.faults[:10])
        )
    bare = replace(plan, method=f"{plan.method}, {module} moved to stage {stage}", optimal=False)
    return placed(bare, problem, clustering, where, evaluation)


def _in_words(fault: str) -> str:
    """What is pinned where the user pinned nothing is the last output, with what follows it."""
    name, pinned, _ = fault.partition(" is pinned to stage ")
    return f"{name} makes an output, which the last stage has to give" if pinned else fault


def posed_again(
    plan: Plan, memory_limit: float | Sequence[float] = float("inf")
) -> tuple[Problem, Clustering]:
    """The plan's problem with its pins; `memory_limit` in bytes, for all stages or one each.

    Without one, none holds: an edit may exceed the devices' memory, and the plan says so.
    """
    return build_problem(
        plan.graph,
        cluster=pipeline_cluster(plan.cluster, plan.replicas),
        n_stages=plan.n_stages,
        n_microbatches=plan.n_microbatches,
        in_flight=in_flight(timetable_of(plan, plan.n_microbatches)),
        memory_limit=memory_limit,
        optimizer=plan.optimizer,
        training=plan.graph.training,
        pins=dict(plan.pins),
        device_of_stage=plan.device_of_stage,
        tied="colocate" if plan.tied == "colocate" else "replicate",
        costed={
            device.name: annotate(plan.graph, device, {}, plan.graph.training)
            for device in dict.fromkeys(plan.cluster.devices[1:])
            if device != plan.cluster.devices[0]
        },
    )


def pins_against(
    plan: Plan, problem: Problem, clustering: Clustering, where: IntArray
) -> dict[int, str]:
    """The user's pins that clusters in the stages `where` (shape [n]) would break, by cluster."""
    found = {}
    for cluster in np.flatnonzero((problem.pins >= 0) & (problem.pins != where)).tolist():
        scopes = {plan.graph.ops[op].scope for op in clustering.ops_of_cluster[cluster]}
        paths = [path for path, _ in plan.pins if any(_is_under(scope, path) for scope in scopes)]
        if paths:
            longest = max(paths, key=len)
            found[cluster] = f"{longest} is pinned to stage {problem.pins[cluster]}"
    return found


def stages_of_clusters(plan: Plan, clustering: Clustering) -> IntArray:
    """Shape [n]: the stage that the plan has each cluster of its problem in."""
    return np.array(
        [plan.stages_of_ops[ops[0]][0] for ops in clustering.ops_of_cluster], dtype=np.int64
    )


def _is_under(scope: str, module: str) -> bool:
    return scope == module or scope.startswith(f"{module}.")


def _within_devices(reports: Sequence[StageReport], cluster: Cluster) -> tuple[StageReport, ...]:
    """A stage planned without a limit still has its device's memory to fit in."""
    limits = [min(r.memory.limit, cluster.devices[r.rank].usable_bytes) for r in reports]
    return tuple(
        replace(report, memory=replace(report.memory, limit=limit))
        for report, limit in zip(reports, limits, strict=True)
    )


def changes(before: Plan, after: Plan) -> Mapping[str, tuple[int, int]]:
    """The modules whose ops run in other stages: path to (stage before, stage after)."""
    old = _stages_of_scopes(before)
    new = _stages_of_scopes(after)
    return {s: (old[s], new[s]) for s in old if s in new and old[s] != new[s]}


def _stages_of_scopes(plan: Plan) -> dict[str, int]:
    pairs = zip(plan.graph.ops, plan.stages_of_ops, strict=True)
    return {op.scope: min(stages) for op, stages in reversed(list(pairs)) if op.scope}
