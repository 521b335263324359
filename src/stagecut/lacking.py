"""What memory lacks where even recomputing every block does not make a model fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from stagecut.ir.errors import InfeasibleError
from stagecut.ir.plan import StageMemory
from stagecut.ir.problem import Problem
from stagecut.ir.solution import Assignment
from stagecut.partitioner.dp import least_missing_bytes
from stagecut.partitioner.orders import orders
from stagecut.report.units import bytes_text

_ORDERS = 2_000
"""Budget times clusters: orders cut; one at least."""


@dataclass(frozen=True, slots=True, eq=False)
class Lack:
    """A cut with every block recomputed."""

    assignment: Assignment
    stages: tuple[tuple[int, ...], ...]
    """For each op of the graph the stages that run it."""
    peaks: tuple[float, ...]
    """Shape [k], bytes."""
    problem: Problem
    """With every block recomputed, under the limits that were given."""

    @property
    def stage(self) -> int:
        """The stage that lacks most."""
        return int(np.argmax(np.array(self.peaks) - self.problem.memory_limit_bytes))

    @property
    def missing_bytes(self) -> float:
        """What that stage lacks; below 0 where all fit."""
        return float(self.peaks[self.stage] - self.problem.memory_limit_bytes[self.stage])


def least_memory_cuts(problem: Problem) -> Iterator[Assignment]:
    """Cuts of a few orders, each of which has the smallest largest stage, beyond its limit.

    The same for limits that are higher or lower by as much on every device.
    """
    limits = problem.memory_limit_bytes
    bare = replace(problem, memory_limit_bytes=limits - limits.min())
    for _, order in islice(orders(bare), max(1, _ORDERS // max(problem.n, 1))):
        cut = least_missing_bytes(bare, order)
        if cut is not None:
            yield cut[1]


def more(limit: float | Sequence[float], n_bytes: float) -> float | list[float]:
    """A limit raised by some bytes on every device, to whole bytes."""
    if isinstance(limit, Sequence):
        return [float(math.ceil(one + n_bytes)) for one in limit]
    return float(math.ceil(limit + n_bytes))


def too_little(
    lack: Lack, memory: StageMemory, works: float | Sequence[float] | None
) -> InfeasibleError:
    """The error that names the stage that lacks most, its terms, and a limit that works if any."""
    limits, stage = lack.problem.memory_limit_bytes, lack.stage
    held = memory.weights + memory.gradients + memory.optimizer
    return InfeasibleError(
        f"the model does not fit in the memory of {lack.problem.n_stages} stages, even with every "
        f"block recomputed: in the nearest cut found, stage {stage} then needs "
        f"{bytes_text(memory.total)} and has {bytes_text(float(limits[stage]))}. Its terms: "
        f"weights, gradients and optimizer state {bytes_text(held)}, saved activations "
        f"{bytes_text(memory.saved_per_microbatch)} x {memory.in_flight} in flight, buffers of "
        f"transfers {bytes_text(memory.boundary)}, workspace {bytes_text(memory.workspace)}. "
        f"{_proof(lack.problem)}{_that_works(lack, works)} use smaller micro-batches, a smaller "
        "dtype, an optimizer with less state, or more stages"
    )


def over_at_peak(memories: Sequence[StageMemory]) -> InfeasibleError:
    """The error where the best cut keeps within limits but for what is only there at the peak."""
    over = [memory.total - memory.limit for memory in memories]
    stage = int(np.argmax(over))
    memory = memories[stage]
    return InfeasibleError(
        f"no cut found fits at its peak: in the nearest, stage {stage} needs "
        f"{bytes_text(memory.total)} and has {bytes_text(memory.limit)}, "
        f"{bytes_text(memory.boundary)} of it for transfers' buffers and "
        f"{bytes_text(memory.workspace)} to work in. That no other cut fits is not proved. Raise "
        f"memory_limit by {math.ceil(over[stage])} bytes, let blocks be recomputed with "
        'recompute="auto", or use smaller micro-batches'
    )


def _proof(problem: Problem) -> str:
    """Of weights alone, which recomputing does not change."""
    total, room = float(problem.weight_bytes.sum()), float(problem.memory_limit_bytes.sum())
    if total <= room:
        return "That no other cut fits is not proved. "
    return (
        f"Proved: weights, gradients and optimizer state alone are {bytes_text(total)}, and all "
        f"devices have {bytes_text(room)}. "
    )


def _that_works(lack: Lack, works: float | Sequence[float] | None) -> str:
    if works is None:
        return "To fit,"
    if isinstance(works, Sequence):
        return f"{math.ceil(lack.missing_bytes)} bytes more on every device work. Otherwise"
    return f"A limit of {works:.0f} bytes works. Otherwise"
