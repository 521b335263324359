"""What every stage would cost between every two boundaries of an order: the programme's matrices.

Legend:  q candidate boundaries, k stages; T_s[j, i] load of stage s between boundaries i and j.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray, Problem
from stagecut.partitioner.arrays import BoolArray
from stagecut.partitioner.evaluate import LIMIT_TOLERANCE, round_trip_seconds
from stagecut.partitioner.intervals import Grid, LinearOrder, Rectangles, range_maximum

SLACK = 1 + 1e-12
"""By which sums of seconds may differ that are equal."""


class StageCosts:
    """Load and memory of every interval between candidate boundaries, for each stage position."""

    def __init__(self, line: LinearOrder, candidates: IntArray) -> None:
        """Reads `line` at ascending `candidates`."""
        self.line = line
        self.problem = line.problem
        self.candidates = candidates
        self.apart = True
        """Whether blocks are computed stage by stage, or in whole for all stages alike."""
        self._whole: dict[tuple[object, ...], FloatArray] = {}
        self._trips: dict[tuple[float, ...], FloatArray] = {}
        self._amounts: dict[tuple[object, ...], FloatArray] = {}
        kinds = np.unique(line.problem.device_kind).tolist()
        self._work = {kind: line.seconds(kind)[candidates] for kind in kinds}

    @cached_property
    def _paid(self) -> Rectangles:
        """Where intervals pay the amounts that `_transfers` lists."""
        line, problem, at = self.line, self.problem, self.candidates
        v, w = len(problem.values), len(problem.weights)
        parts = (
            Rectangles.touched(line.values, at),
            Rectangles.holding(line.producer, at),
            Rectangles.contained(line.values, at),
            Rectangles.touched(line.weights, at),
            Rectangles.contained(line.weights, at),
        )
        return Rectangles.all_of(parts, (v, v, v, w, w))

    @cached_property
    def _kept(self) -> tuple[Rectangles, Rectangles]:
        """Intervals that need each weight, and each saved storage."""
        line, at = self.line, self.candidates
        return Rectangles.touched(line.weights, at), Rectangles.touched(line.saved, at)

    def spans(self, upper: float) -> list[slice] | None:
        """For each boundary, k + 1 of them, the candidates it may be at; None if one has none."""
        opened = self.open_boundaries()
        if np.isfinite(upper):
            opened &= self.within(upper)
        if not opened.any(axis=1).all():
            return None
        return [span(row) for row in opened]

    def entries(self, upper: float) -> float:
        """Of the matrices that stages may have below `upper`; infinity where they have no cut."""
        spans, asked = self.spans(upper), 0
        for stage, starts in enumerate(spans[:-1] if spans else ()):
            least = self.least_seconds(stage)
            latest = np.searchsorted(least, least[starts] + upper, side="right")
            asked += int((latest - np.arange(starts.start, starts.stop)).sum())
        return asked if spans else np.inf

    def least_seconds(self, stage: int) -> FloatArray:
        """Shape [q], ascending: an interval costs the stage its ends' difference or more."""
        return self._work[int(self.problem.device_kind[stage])]

    def load(self, stage: int, ends: slice, starts: slice) -> FloatArray:
        """Shape [ends, starts]: T_s[j, i] for stage position `stage`; read only."""
        before, after = _neighbours(self.problem, stage)
        links = _link(self.problem, before, stage), _link(self.problem, stage, after)
        key = (int(self.problem.device_kind[stage]), *links)

        def computed(ends: slice, starts: slice) -> FloatArray:
            grid = self._transfers(key, self._neighbourly(stage), ends, starts)
            return self._with_compute(stage, grid, ends, starts)

        return self._block(key, ends, starts, computed)

    def _neighbourly(self, stage: int) -> tuple[FloatArray, FloatArray]:
        """Shape [v] each: round trips with the stage before, and with the stage after."""
        before, after = _neighbours(self.problem, stage)
        return self._round_trip(before, stage), self._round_trip(stage, after)

    def _round_trip(self, source: int, destination: int) -> FloatArray:
        """Shape [v]: seconds of each value there and back; each distinct link once."""
        link = _link(self.problem, source, destination)
        if link not in self._trips:
            self._trips[link] = round_trip_seconds(self.problem, source, destination)
        return self._trips[link]

    def memory(self, stage: int, ends: slice, starts: slice) -> FloatArray:
        """Peak bytes of stage position `stage` where it ends and starts there."""
        in_flight = float(self.problem.in_flight[stage])
        if self.apart:
            return self._memory(1.0, in_flight, ends, starts)
        held = self._block(("held",), ends, starts, partial(self._memory, 1.0, 0.0))
        saved = self._block(("saved",), ends, starts, partial(self._memory, 0.0, 1.0))
        peak: FloatArray = saved * in_flight
        peak += held
        return peak

    def _block(
        self,
        kind: tuple[object, ...],
        ends: slice,
        starts: slice,
        computed: Callable[[slice, slice], FloatArray],
    ) -> FloatArray:
        """Those rows and columns of what `computed` makes: in whole, kept for the next to ask."""
        if self.apart:
            return computed(ends, starts)
        if kind not in self._whole:
            every = slice(0, len(self.candidates))
            self._whole[kind] = computed(every, every)
        return self._whole[kind][ends, starts]

    def _memory(self, held: float, in_flight: float, ends: slice, starts: slice) -> FloatArray:
        """Shape [ends, starts]: bytes held throughout, times `held`, and of micro-batches."""
        grid, (weights, saved) = Grid(ends, starts), self._kept
        weights.add_to(grid, self.problem.weight_bytes * held)
        saved.add_to(grid, self.problem.saved_bytes * in_flight)
        if not held:
            return grid.sum()
        workspace, at = self.problem.workspace_bytes[self.line.order], self.candidates
        return grid.sum() + range_maximum(workspace, at[ends], at[starts])

    def allowed(self, stage: int, ends: slice, starts: slice) -> FloatArray:
        """T_s for stages that end and start there, infinity where one is empty or does not fit."""
        load = self.load(stage, ends, starts)
        load = load if self.apart else load.copy()
        limit = self.problem.memory_limit_bytes[stage] * LIMIT_TOLERANCE
        if not self._all_fit(stage, ends, starts, limit):
            load[self.memory(stage, ends, starts) > limit] = np.inf
        return self.only_forwards(load, ends, starts)

    def _all_fit(self, stage: int, ends: slice, starts: slice, limit: float) -> bool:
        """Whether the longest of those intervals fits, and so all."""
        if not np.isfinite(limit):
            return True
        last, first = slice(ends.stop - 1, ends.stop), slice(starts.start, starts.start + 1)
        return bool(self.memory(stage, last, first)[0, 0] <= limit)

    def within(self, upper: float) -> BoolArray:
        """Shape [k + 1, q]: where stage s may begin if no stage computes more than `upper`."""
        kinds = np.unique(self.problem.device_kind).tolist()
        each = (self.problem.forward_seconds + self.problem.backward_seconds)[kinds].min(axis=0)
        work = np.concatenate([[0.0], np.cumsum(each[self.line.order])])
        before, room = work[self.candidates], np.arange(self.problem.n_stages + 1)[:, None] * upper
        early: BoolArray = before <= room * SLACK
        late: BoolArray = work[-1] - before <= room[::-1] * SLACK
        return early & late

    def only_forwards(self, cost: FloatArray, ends: slice, starts: slice) -> FloatArray:
        """`cost` with infinity where a stage would end before, or where, it starts."""
        if ends.start < starts.stop:
            corner = cost[: starts.stop - ends.start, max(ends.start - starts.start, 0) :]
            end = np.arange(ends.start, ends.start + len(corner))[:, None]
            start = np.arange(starts.stop - corner.shape[1], starts.stop)
            np.copyto(corner, np.inf, where=end <= start)
            if self.problem.allow_empty:
                corner[end == start] = 0.0
        return cost

    def open_boundaries(self) -> BoolArray:
        """Shape [k + 1, q]: whether the pins let stage s begin at each boundary."""
        low, high = pin_windows(self.problem, self.line.order)
        opened: BoolArray = self.candidates >= low[:, None]
        return opened & (self.candidates <= high[:, None])

    def _transfers(
        self,
        key: tuple[object, ...],
        prices: tuple[FloatArray, FloatArray],
        ends: slice,
        starts: slice,
    ) -> Grid:
        """What intervals pay: [v] where they have users alone, and [v] where the producer.

        `key` tells these prices from others.
        """
        if key not in self._amounts:
            arriving, leaving = prices
            sync = self.problem.weight_sync_seconds
            self._amounts[key] = np.concatenate(
                [arriving, leaving - arriving, -leaving, sync, -sync]
            )
        grid = Grid(ends, starts)
        self._paid.add_to(grid, self._amounts[key])
        return grid

    def _with_compute(self, stage: int, transfers: Grid, ends: slice, starts: slice) -> FloatArray:
        """Shape [ends, starts]: the grid's sums and what the intervals compute."""
        work = self._work[int(self.problem.device_kind[stage])]
        load = transfers.sum()
        np.maximum(load, 0.0, out=load)
        load += work[ends, None]
        load -= work[starts]
        return load


def pin_windows(problem: Problem, order: IntArray) -> tuple[IntArray, IntArray]:
    """Shape [k + 1] each: the first and last position where stage s may begin, as pins allow."""
    pins = problem.pins[order]
    pinned = np.flatnonzero(pins >= 0)
    begins = np.arange(problem.n_stages + 1)[:, None]
    low = np.where(pins[pinned] < begins, pinned + 1, 0).max(axis=1, initial=0)
    high = np.where(pins[pinned] >= begins, pinned, len(order)).min(axis=1, initial=len(order))
    high[0], low[-1] = 0, len(order)
    return low, high


def _neighbours(problem: Problem, stage: int) -> tuple[int, int]:
    """The stages next to one; at an end, the one neighbour twice; itself where it is alone."""
    last = problem.n_stages - 1
    before = stage - 1 if stage else min(1, last)
    after = stage + 1 if stage < last else max(last - 1, 0)
    return before, after


def _link(problem: Problem, source: int, destination: int) -> tuple[float, ...]:
    """What tells one link from another, both ways."""
    return tuple(
        float(figure[ends])
        for figure in (problem.link_latency_seconds, problem.link_seconds_per_byte)
        for ends in ((source, destination), (destination, source))
    )


def span(opened: BoolArray) -> slice:
    """From the first open boundary to the last; empty if none is."""
    indices = np.flatnonzero(opened)
    return slice(int(indices[0]), int(indices[-1]) + 1) if len(indices) else slice(0, 0)
