"""The rules about computes: place, completeness, order, micro-batches in flight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from stagecut.ir.errors import ArgumentError
from stagecut.ir.schedule import Action, ActionList, Compute, Phase, Send
from stagecut.partitioner.schedules.fault import Fault, compute_marks, placed
from stagecut.partitioner.schedules.flight import count_in_flight, is_inference
from stagecut.partitioner.schedules.grid import Mark
from stagecut.partitioner.schedules.stage_graph import PASS, StageGraph, stage_graph


def placement(action_list: ActionList) -> Iterator[Fault]:
    """Every action names something that exists, on the device that owns it."""
    schedule = action_list.schedule
    if len(action_list.devices) != len(schedule.devices):
        yield Fault(f"{len(action_list.devices)} lists for {len(schedule.devices)} devices")
    for stage, device in enumerate(schedule.device_of_stage):
        if not 0 <= device < len(action_list.devices):
            yield Fault(f"stage {stage} is on device {device}, which has no list")
    try:
        stage_graph(schedule.device_of_stage, action_list.edges)
    except ArgumentError as error:
        yield Fault(str(error))
    for mark, action in placed(action_list):
        if reason := _misplaced(action, mark[0], action_list):
            yield Fault(f"{action} on device {mark[0]}: {reason}", (mark,))


def _misplaced(action: Action, device: int, action_list: ActionList) -> str:
    owner, m = action_list.schedule.device_of_stage, action_list.schedule.n_microbatches
    here, others, microbatch = _names(action)
    if unknown := [stage for stage in (here, *others) if not 0 <= stage < len(owner)]:
        return f"there is no stage {unknown[0]}"
    if not 0 <= microbatch < m:
        return f"there is no micro-batch {microbatch} among {m}"
    return "" if owner[here] == device else f"stage {here} is on device {owner[here]}"


def _names(action: Action) -> tuple[int, tuple[int, ...], int]:
    """The stage that acts, the other stages named, the micro-batch."""
    if isinstance(action, Compute):
        return action.stage, (), action.microbatch
    message = action.message
    ends = message.source, message.destination
    here, other = ends if isinstance(action, Send) else ends[::-1]
    return here, (other,), message.microbatch


def completeness(action_list: ActionList) -> Iterator[Fault]:
    """Each stage runs each micro-batch forward once and backward once, whole or in two halves.

    A list without any backward is a complete inference.
    """
    where: dict[Compute, list[Mark]] = defaultdict(list)
    for mark, action in placed(action_list):
        if isinstance(action, Compute):
            where[action].append(mark)
    for compute, marks in where.items():
        if len(marks) > 1:
            yield Fault(f"{compute} runs {len(marks)} times", tuple(marks))
    training = any(compute.phase is not Phase.FORWARD for compute in where)
    schedule = action_list.schedule
    for stage, device in enumerate(schedule.device_of_stage):
        end = device, len(action_list.devices[device])
        for microbatch in range(schedule.n_microbatches):
            forward, backward, inputs, weights = (Compute(stage, p, microbatch) for p in Phase)
            if forward not in where:
                yield Fault(f"{forward} never runs", (end,))
            if training:
                yield from _backward(where, backward, (inputs, weights), end)


def _backward(
    where: dict[Compute, list[Mark]], whole: Compute, halves: tuple[Compute, Compute], end: Mark
) -> Iterator[Fault]:
    run = [half for half in halves if half in where]
    if whole in where and run:
        marks = tuple(mark for compute in (whole, *run) for mark in where[compute])
        yield Fault(f"{whole} runs, and so does its half {run[0]}", marks)
    elif whole not in where and not run:
        yield Fault(f"{whole} never runs, nor do its halves {halves[0]} and {halves[1]}", (end,))
    elif whole not in where and len(run) == 1:
        lost = halves[1] if run == [halves[0]] else halves[0]
        yield Fault(f"{run[0]} runs without {lost}", (where[run[0]][0], end))


def agreement(action_list: ActionList) -> Iterator[Fault]:
    """The list computes what its schedule says, in its order."""
    for device, planned in enumerate(action_list.schedule.devices):
        actions = action_list.devices[device]
        listed = [(p, action) for p, action in enumerate(actions) if isinstance(action, Compute)]
        if tuple(action for _, action in listed) == planned:
            continue
        pairs = zip(listed, planned, strict=False)
        position = next((p for (p, a), compute in pairs if a != compute), len(actions))
        yield Fault(
            f"device {device} computes something else than its schedule says",
            ((device, position),),
        )


def order(action_list: ActionList) -> Iterator[Fault]:
    """On each device a compute stands after those of the same device that it uses."""
    where = compute_marks(action_list)
    graph = stage_graph(action_list.schedule.device_of_stage, action_list.edges)
    for compute, mark in where.items():
        for earlier in _uses(compute, graph):
            stands = where.get(earlier)
            if stands is not None and stands[1] > mark[1]:
                yield Fault(f"{compute} stands before {earlier}, which it uses", (stands, mark))


def _uses(compute: Compute, graph: StageGraph) -> Iterator[Compute]:
    stage, microbatch = compute.stage, compute.microbatch
    if compute.phase is Phase.BACKWARD_WEIGHT:
        yield Compute(stage, Phase.BACKWARD_INPUT, microbatch)
        return
    if compute.phase is not Phase.FORWARD:
        yield Compute(stage, Phase.FORWARD, microbatch)
    for other in graph.before[PASS[compute.phase]][stage].local:
        for phase, passing in PASS.items():
            if passing is PASS[compute.phase]:
                yield Compute(other, phase, microbatch)


def limits(action_list: ActionList, in_flight_limit: Sequence[int]) -> Iterator[Fault]:
    """No stage holds more micro-batches than it may; the first excess of each is reported."""
    k = action_list.schedule.n_stages
    if len(in_flight_limit) != k:
        yield Fault(f"{len(in_flight_limit)} in-flight limits for {k} stages")
        return
    if is_inference(action_list.schedule):
        return
    exceeded: set[int] = set()
    for device, actions in enumerate(action_list.devices):
        listed = [(p, action) for p, action in enumerate(actions) if isinstance(action, Compute)]
        counts = count_in_flight(compute for _, compute in listed)
        for (position, _), (stage, count) in zip(listed, counts, strict=True):
            if count > in_flight_limit[stage] and stage not in exceeded:
                exceeded.add(stage)
                yield Fault(
                    f"stage {stage} holds {count} micro-batches, and may hold "
                    f"{in_flight_limit[stage]}",
                    ((device, position),),
                )
