"""ZB-V: two stages a device in a V, the backward in two halves, no bubble within a device's work.

Legend:  2 d stages, d devices, m micro-batches, r a device; down and up, its two stages.

    d = 2, stages 0 and 3 on device 0, 1 and 2 on device 1, m = 3
    device 0   0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2
    device 1   1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2

Where F, I and W take equally long and m >= 2 d - 1, each device computes from its first forward to
its last weight half without a pause; no device holds more than 2 d micro-batches of single stages,
1F1B's peak.

Qi et al., "Pipeline Parallelism with Controllable Memory", 2024, section 3 (V-ZB); first shown as
ZB-V in "Zero Bubble Pipeline Parallelism", 2023.
"""

from __future__ import annotations

from collections.abc import Iterator

from stagecut.ir.schedule import Compute, Schedule
from stagecut.partitioner.schedules.v_shape import Leg, v_schedule


def zb_v(k: int, d: int, m: int) -> Schedule:
    """Two stages a device.

    Raises:
        ArgumentError: k is not 2 d.
    """
    return v_schedule("zb_v", _order, k, d, m, least=2 * d - 1)


def _order(r: int, d: int, m: int, down: Leg, up: Leg) -> Iterator[Compute]:
    yield from (down.forward() for _ in range(2 * (d - r) - 1))
    for _ in range(r):
        yield up.forward()
        yield down.forward()
    for _ in range(d - r):
        yield from _turn(up)
    for i in range(m - d):
        if i < m - (2 * d - r - 1):
            yield down.forward()
        yield down.backward_input()
        yield down.backward_weight()
        yield from _turn(up)
    for _ in range(r):
        yield down.backward_input()
        yield up.backward_input()
    for _ in range(d - r):
        yield down.backward_input()
        yield down.backward_weight()
    yield from (up.backward_weight() for _ in range(r))
    yield from (down.backward_weight() for _ in range(r))


def _turn(up: Leg) -> tuple[Compute, Compute, Compute]:
    return up.forward(), up.backward_input(), up.backward_weight()
