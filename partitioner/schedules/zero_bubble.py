"""ZB-H1: the backward in two halves; weight gradients, which nobody awaits, fill the bubble.

Legend:  k stages, m micro-batches, s a stage, i a micro-batch.

    k = 3, m = 3     step  0    1    2    3    4    5    6    7    8    9    10
                 device 0  0F0  0F1  0F2            0I0  0W0  0I1  0W1  0I2  0W2
                 device 1       1F0  1F1       1I0  1F2  1I1  1W0  1I2  1W1  1W2
                 device 2            2F0  2I0  2F1  2I1  2F2  2I2  2W0  2W1  2W2

The order of 1F1B, with the weight half s micro-batches behind the input half on stage s. Bubble
(k - 1) (F + I - W) seconds against 1F1B's (k - 1) (F + I + W), where F, I, W are the seconds of a
forward and the two halves, W <= F, W <= I and m >= k. Until the weight half counts as in flight,
every stage holds min(k, m), as 1F1B's first stage.

Qi et al., "Zero Bubble Pipeline Parallelism", 2023, section 2.2 and table 2.
"""

from __future__ import annotations

from collections.abc import Iterator

from stagecut.ir.errors import ArgumentError
from stagecut.ir.schedule import Compute, Schedule
from stagecut.partitioner.schedules.computes import backward_input, backward_weight, forward


def zero_bubble(k: int, d: int, m: int) -> Schedule:
    """One stage a device.

    Raises:
        ArgumentError: k differs from d.
    """
    if k != d:
        raise ArgumentError(
            f"zero_bubble runs one stage a device, not {k} stages on {d} devices; "
            'use "zb_v" for two stages a device'
        )
    devices = tuple(tuple(_device(s, k, m)) for s in range(k))
    return Schedule("zero_bubble", tuple(range(k)), m, devices)


def _device(s: int, k: int, m: int) -> Iterator[Compute]:
    w = min(k - s - 1, m)
    yield from (forward(s, i) for i in range(w))
    for i in range(m):
        if w + i < m:
            yield forward(s, w + i)
        yield backward_input(s, i)
        if i >= s:
            yield backward_weight(s, i - s)
    yield from (backward_weight(s, i) for i in range(max(m - s, 0), m))
