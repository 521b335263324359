"""GPipe: all micro-batches forward, then all backward, the last stage first.

Legend:  k stages, d devices, m micro-batches, s a stage, i a micro-batch.

    k = d = 3, m = 3         step  0    1    2    3    4    5    6    7    8    9
                         device 0  0F0  0F1  0F2                      0B0  0B1  0B2
                         device 1       1F0  1F1  1F2       1B0  1B1  1B2
                         device 2            2F0  2F1  2F2  2B0  2B1  2B2

(A backward is drawn one step long.) Bubble (k - 1) / (m + k - 1); every stage has m in flight.
Stage s lies on device s mod d. Where a device owns several stages it runs each through all
micro-batches before the next, the breadth-first order.

Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism",
2019, section 2.3; Lamy-Poirier, "Breadth-First Pipeline Parallelism", 2022, section 4.
"""

from __future__ import annotations

from collections.abc import Iterator

from stagecut.ir.schedule import Compute, Schedule
from stagecut.partitioner.schedules.computes import backward, forward


def gpipe(k: int, d: int, m: int) -> Schedule:
    """Every forward before any backward; k may be any number of stages >= d."""
    devices = tuple(tuple(_fill_then_drain(range(device, k, d), m)) for device in range(d))
    return Schedule("gpipe", tuple(s % d for s in range(k)), m, devices)


def _fill_then_drain(stages: range, m: int) -> Iterator[Compute]:
    yield from (forward(s, i) for s in stages for i in range(m))
    yield from (backward(s, i) for s in reversed(stages) for i in range(m))
