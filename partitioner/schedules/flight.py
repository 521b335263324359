"""How many micro-batches' saved tensors each stage holds at its peak."""

from __future__ import annotations

from collections.abc import Iterable

from stagecut.ir.schedule import Compute, Phase, Schedule

CHANGE = {
    Phase.FORWARD: 1,
    Phase.BACKWARD: -1,
    Phase.BACKWARD_INPUT: 0,
    Phase.BACKWARD_WEIGHT: -1,
}
"""A micro-batch is in flight from its forward until its backward, or until the weight half."""


def in_flight(schedule: Schedule) -> tuple[int, ...]:
    """Shape [k]: the most micro-batches between forward and (the end of) backward at once.

    A forward-only schedule saves nothing: one micro-batch at a time.
    """
    if is_inference(schedule):
        return (1,) * schedule.n_stages
    peak = [0] * schedule.n_stages
    for computes in schedule.devices:
        for stage, count in count_in_flight(computes):
            peak[stage] = max(peak[stage], count)
    return tuple(peak)


def is_inference(schedule: Schedule) -> bool:
    """Whether there is no backward at all, hence nothing to keep for it."""
    return all(c.phase is Phase.FORWARD for computes in schedule.devices for c in computes)


def count_in_flight(computes: Iterable[Compute]) -> Iterable[tuple[int, int]]:
    """After each compute of a device: its stage and the micro-batches in flight there."""
    now: dict[int, int] = {}
    for compute in computes:
        now[compute.stage] = now.get(compute.stage, 0) + CHANGE[compute.phase]
        yield compute.stage, now[compute.stage]
