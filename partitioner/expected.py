"""Transfers priced by where the other ends are expected to be, not by the neighbours' links.

Between two boundaries of an order nothing tells in how many later stages a value is used, nor over
which links. A cut that is already known tells it well enough: every cluster outside the interval is
expected in the stage that the known cut gives it. Then

    a consumer pays     one round trip with the producer's expected stage
    a producer pays     one round trip with every expected stage that has a consumer outside

which is what the score counts for the known cut itself, and nearly so for those close to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray
from stagecut.partitioner.evaluate import transfer_seconds
from stagecut.partitioner.intervals import Grid, LinearOrder
from stagecut.partitioner.stage_costs import StageCosts


class Expected(StageCosts):
    """Load between boundaries under the rule "per_consumer", other clusters being where expected.

    A value that some cluster uses before its producer is priced by the neighbours' links.
    """

    def __init__(self, line: LinearOrder, candidates: IntArray, expected: IntArray) -> None:
        """`expected` [n]: the stage of every position, ascending."""
        super().__init__(line, candidates)
        values, position = line.problem.values, line.position
        value = np.repeat(np.arange(len(values)), np.diff(values.offsets))
        at = position[values.members]
        self._ahead = line.producer == line.values.first
        used = (at > line.producer[value]) & self._ahead[value]
        by_stage = np.lexsort((at[used], value[used]))
        self._value, self._until = value[used][by_stage], at[used][by_stage]
        self._stage = expected[self._until]
        self._from = expected[line.producer]

    def in_blocks(self, spans: Sequence[slice] | None, most: int) -> bool:
        """As for any costs; but what stages do not share is never computed in whole."""
        few = super().in_blocks(spans, most)
        self._apart = spans is not None
        return few

    def load(self, stage: int, ends: slice, starts: slice) -> FloatArray:
        """Shape [ends, starts]: T_s[j, i] for stage position `stage`; read only."""

        def computed(ends: IntArray, starts: IntArray) -> tuple[FloatArray, ...]:
            return (self._expected_load(stage, ends, starts),)

        (load,) = self._block((stage,), ends, starts, computed)
        return load

    def _expected_load(self, stage: int, ends: IntArray, starts: IntArray) -> FloatArray:
        arriving, leaving = self._neighbourly(stage)
        arriving = np.where(self._ahead & (self._from < stage), self._received(stage), arriving)
        behind = np.where(self._ahead, 0.0, leaving)
        grid = self._transfers(arriving, behind, ends, starts)
        if stage + 1 < self.problem.n_stages:
            self._send(grid, stage)
        return self._with_compute(int(self.problem.device_kind[stage]), grid, ends, starts)

    def _received(self, stage: int) -> FloatArray:
        """Shape [v]: the round trip between the stage and the producers' expected ones."""
        value = np.arange(len(self._from))
        here = np.full_like(value, stage)
        there, back = transfer_seconds(self.problem, value, self._from, here)
        return there + back

    def _send(self, grid: Grid, stage: int) -> None:
        """Every expected stage of consumers after an interval with the producer is sent to once."""
        to = np.maximum(self._stage, stage + 1)
        last = np.ones(len(to), dtype=bool)
        last[:-1] = (to[1:] != to[:-1]) | (self._value[1:] != self._value[:-1])
        value, to = self._value[last], to[last]
        there, back = transfer_seconds(self.problem, value, np.full_like(value, stage), to)
        grid.holds_until(self.line.producer[value], self._until[last], there + back)
