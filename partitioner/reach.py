"""How far into the model each boundary can be, and how far it must be, within a load limit.

Legend:  k stages, B bins of prefix work (bins.py), T the limit on every stage's load.

    most[s, j]     the most work before boundary s, if it is in bin j and all stages so far are
                   within T: max over i <= j of most[s - 1, i] + (T - transfers[i, j]) / slowdown
    least[s, i]    the least there, if all later stages are within T; the same from the back

Where least > most in every bin of some boundary, no assignment is within T. Work is carried from
stage to stage as it is, not as the ends of a bin: wide bins lose only some of the transfers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stagecut.ir.problem import FloatArray
from stagecut.partitioner.arrays import BoolArray, sums
from stagecut.partitioner.bins import Bins


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """What every assignment within a limit keeps to; shape [k - 1, B] each."""

    least: FloatArray
    most: FloatArray
    alive: BoolArray
    """Whether the boundary may be in the bin."""

    @property
    def possible(self) -> bool:
        """Whether every boundary may be somewhere."""
        return bool(self.alive.any(axis=1).all())


class Paths:
    """Paths of k stages through bins."""

    def __init__(self, bins: Bins) -> None:
        relaxed = bins.relaxed
        self.bins, self.slowdown = bins, relaxed.slowdown
        self.into, self.out_of = relaxed.entering_price, relaxed.leaving_price
        self._fits = _fits(bins)
        prices = set(zip(self.into[1:-1].tolist(), self.out_of[1:-1].tolist(), strict=True))
        self._paid = {pair: bins.transfers(*pair) for pair in prices}
        self._level = bins.level_between()
        self._added = [bins.surcharge(stage) for stage in range(len(self.slowdown))]

    def reach(self, limit: float) -> Reach:
        """Where each boundary may be if no stage's load is above `limit`."""
        most, least = self._most(limit), self._least(limit)
        return Reach(least, most, least <= most + self.bins.slack)

    def possible(self, limit: float) -> bool:
        """Whether some path keeps within `limit`."""
        bins, last = self.bins, len(self.slowdown) - 1
        missing = bins.total - self._most(limit)[-1] - bins.slack
        return bool((missing <= self._last_room(limit, last)).any())

    def _most(self, limit: float) -> FloatArray:
        bins, k = self.bins, len(self.slowdown)
        paid = bins.crossings[:, 1, self.out_of[0], -1] + self._fits(0)[0, :-1]
        if (added := self._added[0]) is not None:
            paid += added[1, -1]
        reached = [self._ended((limit - paid) / self.slowdown[0])]
        for stage in range(1, k - 1):
            further = reached[-1][:, None] + self._room(stage, limit)
            reached.append(self._ended(further.max(axis=0, initial=-np.inf)))
        return np.stack(reached)

    def _ended(self, reach: FloatArray) -> FloatArray:
        """`reach` as far as each bin goes; minus infinity where the bin is not reached."""
        bins = self.bins
        return np.where(reach >= bins.lo - bins.slack, np.minimum(reach, bins.hi), -np.inf)

    def _least(self, limit: float) -> FloatArray:
        bins, k = self.bins, len(self.slowdown)
        needed = [self._begun(bins.total - self._last_room(limit, k - 1))]
        for stage in range(k - 2, 0, -1):
            nearer = needed[-1] - self._room(stage, limit)
            needed.append(self._begun(nearer.min(axis=1, initial=np.inf)))
        return np.stack(needed[::-1])

    def _begun(self, need: FloatArray) -> FloatArray:
        """`need` as far as each bin begins; infinity where more is needed than the bin has."""
        bins = self.bins
        return np.where(need <= bins.hi + bins.slack, np.maximum(need, bins.lo), np.inf)

    def _last_room(self, limit: float, last: int) -> FloatArray:
        """Shape [B]: the most work of the last stage, after a prefix of each bin."""
        paid = self.bins.crossings[:, 0, self.into[-1], -1] + self._fits(last)[1:, -1]
        if (added := self._added[last]) is not None:
            paid += added[0, -1]
        room: FloatArray = (limit - paid) / self.slowdown[last]
        return room

    def _room(self, stage: int, limit: float) -> FloatArray:
        """Shape [B, B]: the most work of a stage in the middle; minus infinity for none at all."""
        paid = self._paid[int(self.into[stage]), int(self.out_of[stage])]
        if (added := self._added[stage]) is not None:
            start, stop = np.arange(len(self.bins))[:, None], np.arange(len(self.bins))
            more = added[0][self._level, start] + added[1][self._level, stop]
            paid = paid + np.where(self._level < 0, 0.0, more)
        if self.bins.relaxed.memory is not None:
            paid = paid + self._fits(stage)[1:, :-1]
        room = (limit - paid) / self.slowdown[stage]
        return np.where(room >= 0, room, -np.inf)


def _fits(bins: Bins) -> Callable[[int], FloatArray]:
    """By stage position, shape [B + 1, B + 1]: infinity where what it surely has is too much.

    Row 0 is for a stage that starts where the model does, row i + 1 for one after a prefix of
    bin i; column j for one up to a prefix of bin j, column B up to the model's end. Else 0.
    """
    memory, shape = bins.relaxed.memory, (len(bins) + 1, len(bins) + 1)
    if memory is None:
        return lambda stage: np.zeros(shape)
    # Surely outside the prefixes of the first `row` bins, surely inside from bin `column` on.
    row = np.searchsorted(bins.hi, bins.before - bins.slack, side="left")
    column = np.searchsorted(bins.lo, bins.total - bins.after + bins.slack, side="right")
    at = row * (len(bins) + 1) + column

    def inside(size: FloatArray) -> FloatArray:
        placed = sums(at, size, shape[0] * shape[1]).reshape(shape)
        summed: FloatArray = np.cumsum(np.cumsum(placed[::-1], axis=0)[::-1], axis=1)
        return summed

    held, saved = inside(memory.held_bytes), inside(memory.saved_bytes)
    largest = np.zeros(shape)
    np.maximum.at(largest, (row, column), memory.workspace_bytes)
    largest = np.maximum.accumulate(largest[::-1], axis=0)[::-1]
    workspace = np.maximum.accumulate(largest, axis=1)
    return lambda stage: np.where(memory.exceeded(stage, held, saved, workspace), np.inf, 0.0)
