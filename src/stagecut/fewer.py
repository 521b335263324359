"""Whether a step on fewer devices is faster: where transfers or sums outweigh what they save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from stagecut.choosing import Decision
from stagecut.ir.device import Cluster
from stagecut.ir.errors import InfeasibleError
from stagecut.ir.plan import Plan
from stagecut.ir.problem import Problem
from stagecut.partitioner.schedules import SCHEDULES
from stagecut.report.units import seconds_text
from stagecut.timetables import FOLDED, STAGES_A_DEVICE

Cut = Callable[[Decision, Cluster, str], tuple[Plan, Problem]]
"""(how a step runs, devices, method): the plan, and the problem whose answer it is."""
_GAIN = 0.01
"""Of a step, below which fewer devices are not worth a word."""
_ALL_UP_TO = 8
"""Devices of a pipeline for which every smaller number is tried."""
_QUICK = "dp"
_SEARCHES = ("auto", "dp", "metis", "exact")
"""Methods whose cut is meant to be the best; baselines are taken as they are."""
_WHOLE = ("1f1b", "gpipe", "forward")
"""Schedules of one stage a device and whole backwards."""


def with_fewer(
    cut: Cut, way: Decision, devices: Cluster, method: str, least_stages: int, allowed: bool
) -> Plan:
    """The plan on all devices, with a note where fewer are faster; on those where `allowed`.

    The steps compared are of the same micro-batches. Only numbers of devices that could gain are
    cut, by the quickest method, and none with fewer than `least_stages`.

    Raises:
        InfeasibleError: nothing satisfies the constraints on all devices, nor on fewer if allowed.
    """
    n = len(devices.devices) // way.replicas
    comparable = isinstance(way.schedule, str) and way.schedule in (*SCHEDULES, FOLDED)
    each = STAGES_A_DEVICE.get(str(way.schedule), 1)
    numbers = [
        fewer for fewer in _fewer_than(n, devices.devices_per_node) if fewer * each >= least_stages
    ]
    try:
        plan, problem = cut(way, devices, method)
    except InfeasibleError as error:
        if not (allowed and comparable):
            raise
        fewer = _best(cut, way, devices, numbers, float("inf"))
        if fewer is None:
            raise
        plan = _by_method(cut, way, devices, method, fewer)
        return _told(plan, devices, f"{n} stages are not possible: {error}.")
    if not comparable or method not in _SEARCHES:
        return plan
    same = replace(way, n_microbatches=plan.n_microbatches)
    worth = [
        fewer
        for fewer in numbers
        if even_seconds(problem, plan, fewer) < plan.step_seconds * (1 - _GAIN)
    ]
    best = _best(cut, same, devices, worth, plan.step_seconds * (1 - _GAIN), fits=_fits(plan))
    if best is None:
        return plan
    if allowed:
        taken = _by_method(cut, same, devices, method, best)
        return _told(taken, devices, f"Fewer devices are {_faster(taken, plan)}.")
    note = f"Fewer devices would be {_faster(best, plan)}; allow_fewer=True takes them."
    return replace(plan, notes=(*plan.notes, note))


def _best(
    cut: Cut, way: Decision, devices: Cluster, numbers: Sequence[int], below: float,
    fits: bool = True,
) -> Plan | None:  # fmt: skip
    """The fastest of the quick plans on fewer devices; None where none is below some seconds."""
    best = None
    for n in numbers:
        try:
            plan, _ = cut(way, devices.first(n * way.replicas), _method(way))
        except InfeasibleError:
            continue
        if plan.step_seconds < below and (_fits(plan) or not fits):
            best, below = plan, plan.step_seconds
    return best


def _by_method(cut: Cut, way: Decision, devices: Cluster, method: str, quick: Plan) -> Plan:
    """By the method that was asked for on as many devices, or the quick plan where that is faster.

    Methods look for the smallest bottleneck, which need not be that of the shortest step.
    """
    if method == _method(way):
        return quick
    same = replace(way, n_microbatches=quick.n_microbatches)
    try:
        plan, _ = cut(same, devices.first(_number(quick) * way.replicas), method)
    except InfeasibleError:
        return quick
    slower = plan.step_seconds > quick.step_seconds
    return quick if slower or (_fits(quick) and not _fits(plan)) else plan


def _told(plan: Plan, devices: Cluster, why: str) -> Plan:
    """The plan with a note on how many devices it uses, and why."""
    used = len(plan.cluster.devices)
    note = f"{why} Of {_devices(len(devices.devices))} it uses {used}: start as many ranks."
    return replace(plan, notes=(*plan.notes, note))


def _faster(fewer: Plan, plan: Plan) -> str:
    return (
        f"faster: a step takes {seconds_text(fewer.step_seconds)} on {_devices(_number(fewer))}, "
        f"{seconds_text(plan.step_seconds)} on {_number(plan)}"
    )


def _fewer_than(n: int, per_node: int) -> list[int]:
    """All numbers below a small n; else one less, its halves down to 1, and whole nodes."""
    if n <= _ALL_UP_TO:
        return list(range(n - 1, 0, -1))
    numbers = {n - 1, *range(per_node, n, per_node)}
    while n > 1:
        n //= 2
        numbers.add(n)
    return sorted(numbers, reverse=True)


def even_seconds(problem: Problem, plan: Plan, n: int) -> float:
    """The plan's micro-batches on n of its devices, whose stages are equal and send nothing.

    Cuts even out loads, so that a real step takes longer: where this is no faster, none is cut.
    """
    m = plan.n_microbatches
    work = float((problem.forward_seconds + problem.backward_seconds).min(axis=0).sum())
    filling = n - 1 if plan.schedule in _WHOLE else 0
    return (m + filling) * work / n


def _method(way: Decision) -> str:
    return "metis" if way.schedule == FOLDED else _QUICK


def _number(plan: Plan) -> int:
    """Devices of one replica."""
    return len(plan.cluster.devices) // plan.replicas


def _fits(plan: Plan) -> bool:
    return all(stage.memory.fits for stage in plan.stages)


def _devices(n: int) -> str:
    return f"{n} device{'' if n == 1 else 's'}"
