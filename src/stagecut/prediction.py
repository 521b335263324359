"""What a plan's step is predicted to take: its own actions, simulated on its own costs."""

from __future__ import annotations

from collections.abc import Sequence

from stagecut.codegen import generate
from stagecut.copies import copies_link, copies_seconds, pipeline_cluster
from stagecut.ir.errors import ArgumentError
from stagecut.ir.graph import Recompute, weight_reads
from stagecut.ir.plan import Plan, StageReport
from stagecut.ir.program import PipelineProgram
from stagecut.ir.schedule import ActionList, Schedule, StageEdge
from stagecut.ir.timeline import EdgeCost, Reduction, StepCosts, Timeline
from stagecut.partitioner.schedules import (
    check,
    expand,
    folded,
    forward_on,
    in_flight,
    simulate,
)
from stagecut.timetables import FOLDED, ScheduleLike, scheduled


def program_of(plan: Plan) -> PipelineProgram:
    """The generated stages of a plan."""
    return generate(plan.graph, plan.stages_of_ops, plan.n_stages)


def actions_of(
    plan: Plan,
    edges: Sequence[StageEdge],
    n_microbatches: int,
    schedule: ScheduleLike | None = None,
) -> ActionList:
    """The checked actions of a step of `n_microbatches`.

    Raises:
        ArgumentError: the schedule puts the stages elsewhere than the plan, or is for another
            number of micro-batches.
        ScheduleError: the schedule is wrong for this plan.
    """
    timetable = timetable_of(plan, n_microbatches, schedule)
    # One receive posted ahead lets every transfer overlap computing; more gain nothing.
    actions = expand(timetable, edges, ahead=1)
    check(actions)
    return actions


def timetable_of(plan: Plan, n_microbatches: int, schedule: ScheduleLike | None = None) -> Schedule:
    """What each device computes in a step, by the plan's schedule or another; not yet checked.

    Raises:
        ArgumentError: the schedule puts the stages elsewhere than the plan, or is for another
            number of micro-batches.
    """
    schedule = schedule or plan.schedule
    if schedule == "forward":
        return forward_on(plan.device_of_stage, n_microbatches)
    if schedule == FOLDED:
        costs = [(stage.forward_seconds, stage.backward_seconds) for stage in plan.stages]
        return folded(plan.device_of_stage, n_microbatches, costs)
    n_devices = max(plan.device_of_stage) + 1
    made = scheduled(schedule, plan.n_stages, n_devices, n_microbatches)
    if made.device_of_stage != plan.device_of_stage:
        raise ArgumentError(
            f"schedule {made.name} puts the stages on devices {made.device_of_stage}, the plan on "
            f"{plan.device_of_stage}; plan again with partition(..., schedule=...) of it"
        )
    if made.n_microbatches != n_microbatches:
        raise ArgumentError(
            f"schedule {made.name} is for {made.n_microbatches} micro-batches, and this step has "
            f"{n_microbatches}; give a batch of more rows, or the schedule as a function"
        )
    return made


def predict(plan: Plan) -> Timeline:
    """The simulated step of a plan."""
    edges = _edges(plan)
    actions = actions_of(plan, edges, plan.n_microbatches)
    return simulate(actions, _costs(plan, edges))


def _edges(plan: Plan) -> tuple[StageEdge, ...]:
    pairs: dict[tuple[int, int], bool] = {}
    for stage in plan.stages:
        for transfer in stage.sends:
            pair = (transfer.source, transfer.destination)
            pairs[pair] = pairs.get(pair, False) or transfer.gradient_bytes > 0
    return tuple(StageEdge(a, b, gradient) for (a, b), gradient in sorted(pairs.items()))


def _costs(plan: Plan, edges: Sequence[StageEdge]) -> StepCosts:
    stages = plan.stages
    flying = in_flight(timetable_of(plan, plan.n_microbatches))
    halves = [_halves(plan, stage) for stage in stages]
    return StepCosts(
        forward_seconds=tuple(stage.forward_seconds for stage in stages),
        backward_seconds=tuple(stage.backward_seconds for stage in stages),
        backward_input_seconds=tuple(first for first, _ in halves),
        backward_weight_seconds=tuple(second for _, second in halves),
        saved_bytes=tuple(stage.memory.saved_per_microbatch for stage in stages),
        # So that with all that a stage ever has in flight it holds what its report says.
        static_bytes=tuple(
            stage.memory.total - stage.memory.saved_per_microbatch * most
            for stage, most in zip(stages, flying, strict=True)
        ),
        optimizer_seconds=tuple(stage.optimizer_seconds for stage in stages),
        edges=tuple(_edge_cost(plan, edge) for edge in edges),
        reductions=_reductions(plan),
    )


def _reductions(plan: Plan) -> tuple[Reduction, ...]:
    """The gradient sums of weights that several stages hold, one a set of holders."""
    sets: dict[tuple[int, ...], int] = {}
    for holders, n_bytes in _shared_weights(plan):
        sets[holders] = sets.get(holders, 0) + n_bytes
    made = []
    for holders, n_bytes in sets.items():
        first = holders[0]
        total = sum(b for h, b in sets.items() if first in h)
        step = plan.stages[first].sync_seconds * plan.n_microbatches
        made.append(Reduction(holders, step * n_bytes / total))
    return (*made, *_replica_sums(plan))


def _replica_sums(plan: Plan) -> list[Reduction]:
    """Each stage's gradients over its copies; those of tied weights are in the sums above too."""
    link = copies_link(plan.cluster, plan.replicas)
    if link is None or not plan.graph.training:
        return []
    sizes = _gradient_bytes(plan)
    return [
        Reduction((stage,), copies_seconds(link, n_bytes, plan.replicas))
        for stage, n_bytes in enumerate(sizes)
    ]


def _gradient_bytes(plan: Plan) -> list[int]:
    """Shape [k]: bytes of the gradients of each stage's trainable weights."""
    sizes = {w.name: w.type.hint_bytes for w in plan.graph.weights if w.trainable}
    held: list[set[str]] = [set() for _ in plan.stages]
    for op, stages in zip(plan.graph.ops, plan.stages_of_ops, strict=True):
        for stage in stages:
            held[stage] |= {name for name in weight_reads(op) if name in sizes}
    return [sum(sizes[name] for name in names) for names in held]


def _shared_weights(plan: Plan) -> list[tuple[tuple[int, ...], int]]:
    """(stages, bytes) of each trainable weight that several stages use."""
    users: dict[str, set[int]] = {w.name: set() for w in plan.graph.weights if w.trainable}
    for op, stages in zip(plan.graph.ops, plan.stages_of_ops, strict=True):
        for name in weight_reads(op):
            if name in users:
                users[name].update(stages)
    sizes = {w.name: w.type.hint_bytes for w in plan.graph.weights}
    return [(tuple(sorted(s)), sizes[name]) for name, s in users.items() if len(s) > 1]


def _halves(plan: Plan, stage: StageReport) -> tuple[float, float]:
    """The stage's backward, shared out as its ops' input and weight halves are.

    All is weight half where nothing that the stage receives has a gradient, and input half where
    the stage recomputes: as the runtime has it (`runtime/halves.py`).
    """
    if not any(transfer.gradient_bytes for transfer in stage.receives):
        return 0.0, stage.backward_seconds
    mine = set(stage.ops)
    ops = [op for op in plan.graph.ops if op.name in mine]
    if any(isinstance(region, Recompute) for op in ops for region in op.context):
        return stage.backward_seconds, 0.0
    costs = [op.cost for op in ops if op.cost is not None]
    inputs = sum(cost.backward_input.seconds for cost in costs)
    weights = sum(cost.backward_weight.seconds for cost in costs)
    share = inputs / (inputs + weights) if inputs + weights else 1.0
    return stage.backward_seconds * share, stage.backward_seconds * (1 - share)


def _edge_cost(plan: Plan, edge: StageEdge) -> EdgeCost:
    ranks = plan.device_of_stage[edge.source], plan.device_of_stage[edge.destination]
    link = pipeline_cluster(plan.cluster, plan.replicas).link(*ranks)
    sent = [t for t in plan.stages[edge.source].sends if t.destination == edge.destination]
    forward = sum(link.seconds(t.n_bytes) for t in sent)
    backward = sum(link.seconds(t.gradient_bytes) for t in sent if t.gradient_bytes)
    return EdgeCost(edge.source, edge.destination, forward, backward)
