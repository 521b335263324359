"""Interleaved 1F1B: each device owns several stages, so the pipeline fills in shorter steps.

Legend:  k = v d stages, d devices, v stages a device, m micro-batches, r a device, s a stage,
         i a micro-batch, w warm-up forwards.

    d = 2, v = 2, m = 2      step  0    1    2    3    4    5    6    7    8    9
                         device 0  0F0  0F1  2F0  2F1       2B0  2B1  0B0  0B1
                         device 1       1F0  1F1  3F0  3B0  3F1  3B1  1B0  1B1

(A backward is drawn one step long.) Stage s lies on device s mod d. A device runs d micro-batches
through one of its stages, then through its next; backward in the opposite order of stages. Bubble
(d - 1) / (v m + d - 1) where d divides m; device r has 2 (d - r - 1) + (v - 1) d + 1 micro-batches
of single stages in flight.

Where d does not divide m, the order is made for the next multiple and the micro-batches that are
not there are left out: what one micro-batch waits for never includes another.

Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", 2021, section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator

from stagecut.ir.errors import ArgumentError
from stagecut.ir.schedule import Compute, Schedule
from stagecut.partitioner.schedules.computes import backward, forward


def interleaved(k: int, d: int, m: int) -> Schedule:
    """Two or more stages a device.

    Raises:
        ArgumentError: k is not 2 d, 3 d, 4 d ...
    """
    if k % d or k == d:
        raise ArgumentError(
            f"interleaved runs 2 or more stages on every device, as many on each, not {k} on {d}; "
            f'ask for {2 * d} stages, or use "1f1b" for one stage a device'
        )
    full = -(-m // d) * d
    devices = (
        tuple(compute for compute in _device(r, d, k // d, full) if compute.microbatch < m)
        for r in range(d)
    )
    return Schedule("interleaved", tuple(s % d for s in range(k)), m, tuple(devices))


def _device(r: int, d: int, v: int, m: int) -> Iterator[Compute]:
    stages = range(r, v * d, d)
    rounds = [range(first, first + d) for first in range(0, m, d)]
    forwards = [forward(s, i) for group in rounds for s in stages for i in group]
    backwards = [backward(s, i) for group in rounds for s in reversed(stages) for i in group]
    w = min(2 * (d - r - 1) + (v - 1) * d, len(forwards))
    yield from forwards[:w]
    for ahead, behind in zip(forwards[w:], backwards, strict=False):
        yield ahead
        yield behind
    yield from backwards[len(forwards) - w :]
