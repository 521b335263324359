"""What the stages of a cut need at their peaks, and cuts that keep to that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from stagecut.fitted import Fitted
from stagecut.ir.device import Cluster
from stagecut.ir.errors import InfeasibleError
from stagecut.ir.plan import StageMemory
from stagecut.ir.problem import FloatArray, Problem
from stagecut.ir.solution import Solution
from stagecut.passes import Part, memory_of_stage, parts_of

_TIGHTENINGS = 2
"""Cuts tried where stages are over their limits by what a cut does not count; each is a search."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """What peaks depend on beside the cut."""

    cluster: Cluster
    device_of_stage: tuple[int, ...]
    n_microbatches: int
    optimizer: str
    training: bool

    def memory(self, problem: Problem, part: Part, index: int) -> StageMemory:
        """Of stage `index`, with its limit in `problem`."""
        kind = self.cluster.devices[self.device_of_stage[index]].kind
        return memory_of_stage(
            part, index, problem, kind, self.optimizer, self.training, self.n_microbatches
        )

    def total(self, problem: Problem) -> Callable[[Part, int], float]:
        """Bytes of a part as the stage of an index."""
        return lambda part, index: self.memory(problem, part, index).total

    def of(self, cut: Fitted, problem: Problem) -> list[StageMemory]:
        """Of each stage."""
        parts = parts_of(cut.graph, cut.stages, problem.n_stages)
        return [self.memory(problem, part, index) for index, part in enumerate(parts)]

    def fullest(self, cut: Fitted, problem: Problem) -> float:
        """The greatest share of its limit that a stage needs."""
        return max(memory.total / memory.limit for memory in self.of(cut, problem))

    def within(self, cut: Fitted, solve: Callable[[Problem], Solution]) -> Fitted:
        """The cut, or another that `solve` finds and that fits at the peaks; else the cut.

        A cut itself counts what adds up: weights, saved tensors, the largest workspace. Where a
        stage is over its limit with the rest, the problem is solved again with as much less.
        """
        tried, lowered = cut, np.zeros(cut.problem.n_stages)
        for left in range(_TIGHTENINGS, -1, -1):
            memories = self.of(tried, cut.problem)
            over = np.array([memory.total - memory.limit for memory in memories]).clip(0.0)
            if not over.any():
                return tried
            lowered += over
            found = _with_less(cut, lowered, solve) if left else None
            if found is None:
                break
            tried = found
        return cut


def _with_less(
    cut: Fitted, n_bytes: FloatArray, solve: Callable[[Problem], Solution]
) -> Fitted | None:
    """The best cut with so much less on each stage; the bound stays that of the limits."""
    limits = cut.problem.memory_limit_bytes - n_bytes
    if (limits <= 0).any():
        return None
    try:
        found = solve(replace(cut.problem, memory_limit_bytes=limits))
    except InfeasibleError:
        return None
    known = cut.solution.lower_bound_seconds
    return replace(cut, solution=replace(found, lower_bound_seconds=known, optimal=False))
