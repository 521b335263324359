"""1F1B: as soon as a stage can run a backward it does, so few micro-batches are in flight.

Legend:  k stages, m micro-batches, s a stage, i a micro-batch, w warm-up forwards.

    k = 3, m = 4             step  0    1    2    3    4    5    6    7    8    9    10   11
                         device 0  0F0  0F1  0F2            0B0  0F3  0B1       0B2       0B3
                         device 1       1F0  1F1       1B0  1F2  1B1  1F3  1B2       1B3
                         device 2            2F0  2B0  2F1  2B1  2F2  2B2  2F3  2B3

(A backward is drawn one step long.) Bubble (k - 1) / (m + k - 1), as GPipe's; stage s has
min(k - s, m) in flight instead of m.

Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", 2019, section
3.2; with a flush a step as in "Memory-Efficient Pipeline-Parallel DNN Training", 2021.
"""

from __future__ import annotations

from collections.abc import Iterator

from stagecut.ir.errors import ArgumentError
from stagecut.ir.schedule import Compute, Schedule
from stagecut.partitioner.schedules.computes import backward, forward


def one_f_one_b(k: int, d: int, m: int) -> Schedule:
    """One stage a device.

    Raises:
        ArgumentError: k differs from d.
    """
    if k != d:
        raise ArgumentError(
            f"1f1b runs one stage a device, not {k} stages on {d} devices; "
            'use "interleaved" for several stages a device'
        )
    return Schedule("1f1b", tuple(range(k)), m, tuple(tuple(_device(s, k, m)) for s in range(k)))


def _device(s: int, k: int, m: int) -> Iterator[Compute]:
    w = min(k - s - 1, m)
    yield from (forward(s, i) for i in range(w))
    for i in range(m - w):
        yield forward(s, w + i)
        yield backward(s, i)
    yield from (backward(s, i) for i in range(m - w, m))
