"""What each stage of an assignment holds, costs, sends and receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stagecut.ir.device import Cluster
from stagecut.ir.graph import Graph
from stagecut.ir.plan import StageMemory, StageReport
from stagecut.ir.problem import IntArray, Problem
from stagecut.ir.solution import Evaluation
from stagecut.passes.groups import Clustering
from stagecut.passes.held import Held
from stagecut.passes.liveness import Profile, stage_profile
from stagecut.passes.modules import module_names
from stagecut.passes.optimizing import NONE_TIMED, step_seconds
from stagecut.passes.parts import Part, parts_of
from stagecut.passes.problem import stages_of_ops
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
    n_microbatches: int | None = None,
    step_timings: Mapping[str, float] = NONE_TIMED,
) -> tuple[StageReport, ...]:
    """One report a stage; seconds and bytes are of one micro-batch.

    `stage` (shape [clusters]) has the stage of each cluster, `device_of_stage` (shape [k]) the
    rank that owns each stage. `step_timings` has measured seconds of weights' optimizer steps, by
    name; the others' follow from the device. Without `n_microbatches` there are taken to be more
    than any stage has in flight.
    """
    stages = stages_of_ops(graph, clustering, stage)
    moved = transfers(graph, stages, training)
    modules = module_names([op.scope for op in graph.ops], stages, problem.n_stages)
    reports = []
    for index, part in enumerate(parts_of(graph, stages, problem.n_stages)):
        costs = [op.cost for op in part.ops if op.cost is not None]
        device = cluster.devices[device_of_stage[index]]
        memory = memory_of_stage(
            part, index, problem, device.kind, optimizer, training, n_microbatches
        )
        reports.append(
            StageReport(
                index=index,
                device=device.name,
                rank=device_of_stage[index],
                modules=tuple(modules[index]),
                ops=tuple(op.name for op in part.ops),
                forward_seconds=float(evaluation.forward_seconds[index]),
                backward_seconds=float(evaluation.backward_seconds[index]),
                send_seconds=float(evaluation.send_seconds[index]),
                receive_seconds=float(evaluation.receive_seconds[index]),
                sync_seconds=float(evaluation.sync_seconds[index]),
                optimizer_seconds=(
                    step_seconds(part.weights, optimizer, device, step_timings) if training else 0.0
                ),
                flops_forward=sum(cost.forward.flops for cost in costs),
                flops_backward=sum(cost.backward.flops for cost in costs),
                memory=replace(memory, margin=device.margin_bytes),
                sends=tuple(t for t in moved if t.source == index),
                receives=tuple(t for t in moved if t.destination == index),
            )
        )
    return tuple(reports)


def memory_of_stage(
    part: Part,
    index: int,
    problem: Problem,
    device_kind: str,
    optimizer: str,
    training: bool,
    n_microbatches: int | None,
) -> StageMemory:
    """The peak of stage `index` in a step."""
    held = Held.of(part.weights, optimizer, training, device_kind)
    in_flight = int(problem.in_flight[index])
    refills = n_microbatches is None or n_microbatches > in_flight
    limit = float(problem.memory_limit_bytes[index])
    return stage_memory(held, stage_profile(part), in_flight, refills, training, limit)


def stage_memory(
    held: Held, profile: Profile, in_flight: int, refills: bool, training: bool, limit: float
) -> StageMemory:
    """A stage's peak in a step, term by term as they are at that moment.

    `refills` says whether a micro-batch's forward follows a backward, as in 1F1B: then later
    backwards too begin with `in_flight` micro-batches held. Moments that may be the peak:

        a forward         before any gradient exists, and among later ones
        the first backward, in which the weights' gradients come into being
        a later backward, with all of them there
        the optimizer's step, with nothing in flight
    """
    gradients, kept = held.gradients, profile.kept
    later = in_flight if refills else in_flight - 1
    moments = [(0, in_flight - 1, profile.forward_peak)]
    if training:
        moments += [
            (profile.first_backward_gradients, in_flight,
             profile.first_backward_peak - profile.first_backward_gradients),
            (gradients, 0, held.step_workspace),
        ]  # fmt: skip
    if training and later > 0:
        moments.append((gradients, later, profile.later_backward_peak))
    if training and refills:
        moments.append((gradients, in_flight - 1, profile.forward_peak))
    present, flying, transient = max(moments, key=lambda m: m[0] + m[1] * kept + m[2])
    boundary = min(profile.boundary, transient) if flying else 0
    return StageMemory(
        weights=held.weights,
        gradients=present,
        optimizer=held.optimizer,
        saved_per_microbatch=kept,
        in_flight=flying,
        boundary=boundary,
        workspace=transient - boundary,
        limit=limit,
    )
