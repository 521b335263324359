"""Executes an action list on predicted costs: the same actions, the same rules, a clock.

A post takes no time. A transfer starts when both ends are posted and the one before it on the same
ordered pair of devices has ended; it overlaps computing, and other pairs do not slow it down. A
compute starts when its device is free and the receives it needs have ended. Every order is fixed
by the list, so the earliest times follow in one walk: O(actions), exact, no event queue.

After its last action a device runs the gradient sums of its stages, then their optimizer steps.
"""

from __future__ import annotations

from stagecut.ir.errors import ArgumentError, ScheduleError
from stagecut.ir.schedule import ActionList, Compute, Phase
from stagecut.ir.timeline import StepCosts, Timeline
from stagecut.partitioner.schedules.critical import critical_path
from stagecut.partitioner.schedules.execution import Execution
from stagecut.partitioner.schedules.flight import is_inference
from stagecut.partitioner.schedules.progress import COMPUTE, resolve, walk
from stagecut.partitioner.schedules.readings import (
    memory_curves,
    span_columns,
    tail_spans,
    transfer_columns,
)


def simulate(action_list: ActionList, costs: StepCosts) -> Timeline:
    """The earliest time of every action of a list that passes `check`.

    Raises:
        ArgumentError: the costs are not one a stage, or an edge between devices has none.
        ScheduleError: the list cannot run to its end.
    """
    _fit(action_list, costs)
    execution = _execute(action_list, costs)
    training = not is_inference(action_list.schedule)
    spans = span_columns(action_list, execution)
    transfers = transfer_columns(action_list, execution)
    tail = tail_spans(action_list.schedule, costs, execution.clock) if training else ()
    return Timeline(
        name=action_list.schedule.name,
        device_of_stage=action_list.schedule.device_of_stage,
        n_devices=len(action_list.devices),
        n_microbatches=action_list.schedule.n_microbatches,
        spans=spans,
        transfers=transfers,
        tail=tail,
        memory=memory_curves(spans, action_list.schedule, costs, training),
        critical_path=critical_path(spans, transfers, tail, execution, action_list.schedule),
    )


def _fit(action_list: ActionList, costs: StepCosts) -> None:
    k = action_list.schedule.n_stages
    owner = action_list.schedule.device_of_stage
    columns = [costs.compute_seconds(phase) for phase in Phase]
    columns += [costs.saved_bytes, costs.static_bytes, costs.optimizer_seconds]
    if wrong := {len(column) for column in columns} - {k}:
        raise ArgumentError(f"costs of {wrong.pop()} stages for a schedule of {k}; give one each")
    priced = {(edge.source, edge.destination) for edge in costs.edges}
    missing = [
        f"{edge.source} -> {edge.destination}"
        for edge in action_list.edges
        if owner[edge.source] != owner[edge.destination]
        and (edge.source, edge.destination) not in priced
    ]
    if missing:
        raise ArgumentError(f"no transfer cost for {', '.join(missing)}; add an EdgeCost for each")


def _execute(action_list: ActionList, costs: StepCosts) -> Execution:
    program = resolve(action_list)
    execution = Execution(program.channels, len(program.devices))
    seconds = {phase: costs.compute_seconds(phase) for phase in Phase}
    transfer = {(e.source, e.destination): e.forward_seconds for e in costs.edges}
    transfer |= {(e.destination, e.source): e.backward_seconds for e in costs.edges}
    for device, position in walk(program):
        kind, channel, waits = program.devices[device][position]
        action = action_list.devices[device][position]
        if isinstance(action, Compute):
            execution.compute(device, seconds[action.phase][action.stage], waits)
        else:
            message = action.message
            cost = transfer[message.source, message.destination]
            execution.post(device, channel, kind, cost)
    done = [len(starts) for starts in execution.starts]
    planned = [sum(kind == COMPUTE for kind, _, _ in steps) for steps in program.devices]
    if done != planned:
        raise ScheduleError(
            f"the schedule {action_list.schedule.name} stops after {sum(done)} of {sum(planned)} "
            "computes; check() draws where it waits"
        )
    return execution
