"""Costs where memory lacks: what it takes to fit, in seconds of recomputing or in bytes missing."""

from __future__ import annotations

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray, Relief
from stagecut.partitioner.arrays import BoolArray
from stagecut.partitioner.evaluate import LIMIT_TOLERANCE
from stagecut.partitioner.intervals import LinearOrder, range_maximum
from stagecut.partitioner.stage_costs import StageCosts


class Relieved(StageCosts):
    """Adds the seconds that buy the memory an interval lacks."""

    def __init__(self, line: LinearOrder, candidates: IntArray, relief: Relief) -> None:
        super().__init__(line, candidates)
        self._grain = relief.grain_bytes
        self._freed = _prefix(relief.freed_bytes, line.order)[candidates]
        self._seconds = [_prefix(row, line.order)[candidates] for row in relief.seconds]
        self._replay = relief.replay_bytes[line.order]

    def allowed(self, stage: int, ends: slice, starts: slice) -> FloatArray:
        """T_s with what recomputation adds, infinity where even all of it leaves too little."""
        needed = self.memory(stage, ends, starts)
        needed -= self.problem.memory_limit_bytes[stage]
        fits = needed <= 0
        needed += range_maximum(self._replay, self.candidates[ends], self.candidates[starts])
        needed /= max(float(self.problem.in_flight[stage]), 1.0)
        freed = _between(self._freed, ends, starts)
        too_little = (needed > freed) & ~fits
        if self._grain:
            needed /= self._grain
            np.ceil(needed, out=needed)
            needed *= self._grain
            np.minimum(needed, freed, out=needed)
        freed[freed <= 0] = 1.0
        needed /= freed
        needed *= _between(self._seconds[int(self.problem.device_kind[stage])], ends, starts)
        needed[fits] = 0.0
        needed[too_little] = np.inf
        needed += self.load(stage, ends, starts)
        return self.only_forwards(needed, ends, starts)


class MissingBytes(StageCosts):
    """Counts the bytes an interval lacks in place of its seconds."""

    def allowed(self, stage: int, ends: slice, starts: slice) -> FloatArray:
        """Bytes above the stage's limit, infinity where the interval is empty."""
        limit = self.problem.memory_limit_bytes[stage] * LIMIT_TOLERANCE
        missing = np.maximum(self.memory(stage, ends, starts) - limit, 0.0)
        return self.only_forwards(missing, ends, starts)

    def least_seconds(self, stage: int) -> FloatArray:
        """Nothing is known of the bytes that an interval lacks."""
        return np.zeros(len(self.candidates))

    def within(self, upper: float) -> BoolArray:
        """Anywhere: bytes missing do not add up."""
        return np.ones((self.problem.n_stages + 1, len(self.candidates)), dtype=bool)


def _prefix(figure: FloatArray, order: IntArray) -> FloatArray:
    """Shape [n + 1]: the sum of figure [n] over the first positions."""
    return np.concatenate([[0.0], np.cumsum(figure[order])])


def _between(prefix: FloatArray, ends: slice, starts: slice) -> FloatArray:
    """The sum of every interval that ends and starts there."""
    return prefix[ends, None] - prefix[starts]
