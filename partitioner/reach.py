"""How far into the model each boundary can be, and how far it must be, within a load limit.

Legend:  k stages, B bins of prefix work (bins.py), T the limit on every stage's load.

    most[s, j]     the most work before boundary s, if it is in bin j and all stages so far are
                   within T: max over i <= j of most[s - 1, i] + (T - transfers[i, j]) / slowdown
    least[s, i]    the least there, if all later stages are within T; the same from the back

Where least > most in every bin of some boundary, no assignment is within T. Work is carried from
stage to stage as it is, not as the ends of a bin: wide bins lose only some of the transfers.

A stage within T spans few of the bins, so only pairs of bins that near are looked at (`_Near`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray
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
    """Paths of k stages through bins, for limits up to the bins' target."""

    def __init__(self, bins: Bins) -> None:
        relaxed = bins.relaxed
        self.bins, self.slowdown = bins, relaxed.slowdown
        self.into, self.out_of = relaxed.entering_price, relaxed.leaving_price
        self._fits = _fits(bins)
        self._added = [bins.surcharge(stage) for stage in range(len(self.slowdown))]
        span = bins.target_seconds / float(self.slowdown.min(initial=np.inf))
        self._before, self._after = _Near.before(bins, span), _Near.after(bins, span)
        self._paid: dict[tuple[int, int, bool], FloatArray] = {}

    def reach(self, limit_seconds: float) -> Reach:
        """Where each boundary may be if no stage's load is above the limit."""
        most, least = self._most(limit_seconds), self._least(limit_seconds)
        return Reach(least, most, least <= most + self.bins.slack)

    def possible(self, limit_seconds: float) -> bool:
        """Whether some path keeps within the limit."""
        bins, last = self.bins, len(self.slowdown) - 1
        missing = bins.total - self._most(limit_seconds)[-1] - bins.slack
        return bool((missing <= self._last_room(limit_seconds, last)).any())

    def _most(self, limit: float) -> FloatArray:
        bins, k, near = self.bins, len(self.slowdown), self._before
        paid = bins.crossings[:, 1, self.out_of[0], -1] + self._fits(0, 0, np.arange(len(bins)))
        if (added := self._added[0]) is not None:
            paid += added[1, -1]
        reached = [self._ended((limit - paid) / self.slowdown[0])]
        for stage in range(1, k - 1):
            further = reached[-1][near.start] + self._room(stage, limit, near)
            reached.append(self._ended(further.max(axis=1, initial=-np.inf)))
        return np.stack(reached)

    def _ended(self, reach: FloatArray) -> FloatArray:
        """`reach` as far as each bin goes; minus infinity where the bin is not reached."""
        bins = self.bins
        return np.where(reach >= bins.lo - bins.slack, np.minimum(reach, bins.hi), -np.inf)

    def _least(self, limit: float) -> FloatArray:
        bins, k, near = self.bins, len(self.slowdown), self._after
        needed = [self._begun(bins.total - self._last_room(limit, k - 1))]
        for stage in range(k - 2, 0, -1):
            nearer = needed[-1][near.stop] - self._room(stage, limit, near)
            needed.append(self._begun(nearer.min(axis=1, initial=np.inf)))
        return np.stack(needed[::-1])

    def _begun(self, need: FloatArray) -> FloatArray:
        """`need` as far as each bin begins; infinity where more is needed than the bin has."""
        bins = self.bins
        return np.where(need <= bins.hi + bins.slack, np.maximum(need, bins.lo), np.inf)

    def _last_room(self, limit: float, last: int) -> FloatArray:
        """Shape [B]: the most work of the last stage, after a prefix of each bin."""
        bins = self.bins
        after = 1 + np.arange(len(bins))
        paid = bins.crossings[:, 0, self.into[-1], -1] + self._fits(last, after, len(bins))
        if (added := self._added[last]) is not None:
            paid += added[0, -1]
        room: FloatArray = (limit - paid) / self.slowdown[last]
        return room

    def _room(self, stage: int, limit: float, near: _Near) -> FloatArray:
        """The most work of a stage in the middle, between bins `near`; minus infinity for none."""
        paid = self._transfers(stage, near)
        if (added := self._added[stage]) is not None:
            more = added[0][near.level, near.start] + added[1][near.level, near.stop]
            paid = paid + np.where(near.level < 0, 0.0, more)
        if self.bins.relaxed.memory is not None:
            paid = paid + self._fits(stage, near.start + 1, near.stop)
        room = (limit - paid) / self.slowdown[stage]
        return np.where(room >= 0, room, -np.inf)

    def _transfers(self, stage: int, near: _Near) -> FloatArray:
        """The least transfers of a stage; infinite where it would end before it starts."""
        into, out_of = int(self.into[stage]), int(self.out_of[stage])
        key = (into, out_of, near is self._before)
        if key not in self._paid:
            crossings = self.bins.crossings
            paid = crossings[near.start, 0, into, near.level]
            paid += crossings[near.stop, 1, out_of, near.level]
            paid[near.level < 0] = 0.0
            paid[~near.there] = np.inf
            self._paid[key] = paid
        return self._paid[key]


@dataclass(frozen=True, slots=True, eq=False)
class _Near:
    """Pairs of bins that a stage may lie between, one bin a row; shape [B, width] each."""

    start: IntArray
    stop: IntArray
    there: BoolArray
    """Whether it is such a pair; the rest fills up the rows."""
    level: IntArray

    @staticmethod
    def before(bins: Bins, span: float) -> _Near:
        """The bins that a stage of `span` work ending in each may start in."""
        stop = np.arange(len(bins))[:, None]
        first = np.searchsorted(bins.hi, bins.lo - span - bins.slack)[:, None]
        start = stop - np.arange(1 + int((stop - first).max(initial=0)))
        return _Near._of(bins, start, np.broadcast_to(stop, start.shape), start >= first)

    @staticmethod
    def after(bins: Bins, span: float) -> _Near:
        """The bins that a stage of `span` work starting in each may end in."""
        start = np.arange(len(bins))[:, None]
        last = np.searchsorted(bins.lo, bins.hi + span + bins.slack, side="right")[:, None] - 1
        stop = start + np.arange(1 + int((last - start).max(initial=0)))
        return _Near._of(bins, np.broadcast_to(start, stop.shape), stop, stop <= last)

    @staticmethod
    def _of(bins: Bins, start: IntArray, stop: IntArray, there: BoolArray) -> _Near:
        start, stop = np.where(there, start, 0), np.where(there, stop, 0)
        return _Near(start, stop, there, bins.level_between(start, stop))


def _fits(bins: Bins) -> Callable[[int, IntArray | int, IntArray | int], FloatArray]:
    """For a stage's position, row and column: infinity where what it surely has is too much, or 0.

    Row 0 is for a stage that starts where the model does, row i + 1 for one after a prefix of
    bin i; column j for one up to a prefix of bin j, column B up to the model's end.
    """
    memory, shape = bins.relaxed.memory, (len(bins) + 1, len(bins) + 1)
    if memory is None:
        return lambda stage, row, column: np.zeros(
            np.broadcast_shapes(np.shape(row), np.shape(column))
        )
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

    def fits(stage: int, row: IntArray | int, column: IntArray | int) -> FloatArray:
        at = row, column
        over = memory.exceeded(stage, held[at], saved[at], workspace[at])
        return np.where(over, np.inf, 0.0)

    return fits
