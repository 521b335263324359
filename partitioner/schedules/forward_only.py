"""Forward only: inference, each micro-batch through all stages.

Legend:  k stages, d devices, m micro-batches, s a stage, i a micro-batch.

    k = d = 3, m = 3         step  0    1    2    3    4
                         device 0  0F0  0F1  0F2
                         device 1       1F0  1F1  1F2
                         device 2            2F0  2F1  2F2

Bubble (k - 1) / (m + k - 1). The first half of GPipe (Huang et al. 2019, section 2.3), with the
same placement: stage s on device s mod d.
"""

from __future__ import annotations

from stagecut.ir.schedule import Schedule
from stagecut.partitioner.schedules.computes import forward


def forward_only(k: int, d: int, m: int) -> Schedule:
    """No backward at all; k may be any number of stages >= d."""
    return forward_on(tuple(s % d for s in range(k)), m)


def forward_on(device_of_stage: tuple[int, ...], m: int) -> Schedule:
    """Forward only, on stages that stand where another schedule put them."""
    devices = tuple(
        tuple(
            forward(s, i) for s, owner in enumerate(device_of_stage) if owner == d for i in range(m)
        )
        for d in range(max(device_of_stage) + 1)
    )
    return Schedule("forward", device_of_stage, m, devices)
