"""What the schedules of V-shaped placement share: two stages a device, down and back up.

Legend:  k = 2 d stages, d devices, m micro-batches, r a device.

    device 0   stage 0                       stage 7
    device 1       stage 1               stage 6
    device 2           stage 2       stage 5
    device 3               stage 3, 4                  (d = 4)

The loss is computed on the device that holds the first stage, and stages d - 1 and d exchange
nothing. Orders are made for as many micro-batches as their pattern needs; those that are not there
are left out, which is safe: what one micro-batch waits for never includes another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count

from stagecut.ir.errors import ArgumentError
from stagecut.ir.schedule import Compute, Schedule
from stagecut.partitioner.schedules.computes import (
    backward,
    backward_input,
    backward_weight,
    forward,
)


class Leg:
    """One of a device's two stages; each verb acts on the next micro-batch in order."""

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._forwards, self._backwards, self._weights = count(), count(), count()

    def forward(self) -> Compute:
        """The next forward."""
        return forward(self._stage, next(self._forwards))

    def backward(self) -> Compute:
        """The next backward, whole."""
        next(self._weights)
        return backward(self._stage, next(self._backwards))

    def backward_input(self) -> Compute:
        """The next input half."""
        return backward_input(self._stage, next(self._backwards))

    def backward_weight(self) -> Compute:
        """The weight half of the oldest micro-batch that has none yet."""
        return backward_weight(self._stage, next(self._weights))


Order = Callable[[int, int, int, Leg, Leg], Iterable[Compute]]
"""(device, devices, micro-batches, first leg, second leg) -> the device's computes."""


def v_schedule(name: str, order: Order, k: int, d: int, m: int, least: int) -> Schedule:
    """The schedule in which every device follows `order`, made for at least `least` micro-batches.

    Raises:
        ArgumentError: k is not 2 d.
    """
    if k != 2 * d:
        raise ArgumentError(
            f"{name} runs two stages a device, not {k} stages on {d} devices; "
            f"ask for {2 * d} stages"
        )
    devices = (
        tuple(
            compute
            for compute in order(r, d, max(m, least), Leg(r), Leg(k - 1 - r))
            if compute.microbatch < m
        )
        for r in range(d)
    )
    owner = tuple(min(s, k - 1 - s) for s in range(k))
    return Schedule(name, owner, m, tuple(devices))
