"""Transfers priced by where the other ends are expected to be, not by the neighbours' links.

Between two boundaries of an order nothing tells in how many later stages a value is used, nor over
which links. A cut that is already known tells it well enough: every cluster outside the interval is
expected in the stage that the known cut gives it. Then

    a consumer pays     one round trip with the producer's expected stage
    a producer pays     one round trip with every expected stage that has a consumer outside

which is what the score counts for the known cut itself, and nearly so for those close to it.
"""

from __future__ import annotations

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
        value, at = value[used], at[used]
        by_producer = np.lexsort((at, value, line.producer[value]))
        self._value, until = value[by_producer], at[by_producer]
        self._stage = expected[until]
        self._from = expected[line.producer]
        self._made = np.searchsorted(candidates, line.producer[self._value], side="right")
        self._until = np.searchsorted(candidates, until, side="right")

    def load(self, stage: int, ends: slice, starts: slice) -> FloatArray:
        """Shape [ends, starts]: T_s[j, i] for stage position `stage`."""
        grid = self._transfers((stage,), self._neighbourly(stage), ends, starts)
        if stage + 1 < self.problem.n_stages:
            self._send(grid, stage)
        return self._with_compute(stage, grid, ends, starts)

    def _neighbourly(self, stage: int) -> tuple[FloatArray, FloatArray]:
        arriving, leaving = super()._neighbourly(stage)
        arriving = np.where(self._ahead & (self._from < stage), self._received(stage), arriving)
        return arriving, np.where(self._ahead, 0.0, leaving)

    def _received(self, stage: int) -> FloatArray:
        """Shape [v]: the round trip between the stage and the producers' expected ones."""
        value = np.arange(len(self._from))
        here = np.full_like(value, stage)
        there, back = transfer_seconds(self.problem, value, self._from, here)
        return there + back

    def _send(self, grid: Grid, stage: int) -> None:
        """Every expected stage of consumers after an interval with the producer is sent to once."""
        near = grid.reached(self._made)
        made, value = self._made[near], self._value[near]
        to = np.maximum(self._stage[near], stage + 1)
        last = np.ones(len(to), dtype=bool)
        last[:-1] = (to[1:] != to[:-1]) | (value[1:] != value[:-1])
        made, until, value, to = made[last], self._until[near][last], value[last], to[last]
        there, back = transfer_seconds(self.problem, value, np.full_like(value, stage), to)
        none, seconds = np.zeros_like(made), there + back
        grid.add(made, none, made, seconds)
        grid.add(until, none, made, -seconds)
