"""The dynamic programme over stage boundaries, swept from both ends of an order.

Legend:  q candidate boundaries, k stages; T_s[j, i] load of stage s between boundaries i and j.

    F[s, j] = min over i < j of max(F[s - 1, i], T_s[j, i])         for the first stages
    B[s, i] = min over j > i of max(B[s + 1, j], T_s[j, i])         for the others

Under an upper bound few boundaries can be reached from either end, and the least bottleneck is the
least max(F, B) where the sweeps meet. Of T_s only tiles are computed: rows as far as a stage that
starts where one can may reach, columns as far back as one that ends there may begin. The least
total then follows along the tiles that both sweeps have left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray
from stagecut.partitioner.stage_costs import SLACK, StageCosts, span

_ROWS = 160
"""Ends in a tile at most: more tiles have fewer useless entries, and each its own overhead."""
_SHARED = 2
"""Matrices in whole, which stages share, cost about this many times as much as one."""
_MARGIN = 1 + 1e-9
"""Beyond the upper bound, so that rounding loses nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """T_s of the intervals that end and start there."""

    ends: slice
    starts: slice
    cost: FloatArray
    """Shape [ends, starts]: infinity where the stage may not; written to by who reads it last."""

    def part(self, ends: slice, starts: slice) -> Tile:
        """What of it ends and starts there."""
        ends, starts = _common(self.ends, ends), _common(self.starts, starts)
        rows = slice(ends.start - self.ends.start, ends.stop - self.ends.start)
        columns = slice(starts.start - self.starts.start, starts.stop - self.starts.start)
        return Tile(ends, starts, self.cost[rows, columns])


def best_boundaries(costs: StageCosts, upper: float) -> tuple[IntArray, float, float] | None:
    """The least bottleneck, then the least total: indices [k + 1] of candidates, and the two.

    None if the bottleneck is above `upper`.
    """
    spans = costs.spans(upper)
    if spans is None:
        return None
    limit = upper * _MARGIN
    costs.apart = costs.entries(limit) <= len(costs.candidates) ** 2 * _SHARED
    best, rest, stages = _both_sweeps(costs, spans, limit)
    bottleneck = float(np.maximum(best[-1], rest[0]).min())
    if not np.isfinite(bottleneck) or bottleneck > upper * SLACK:
        return None
    reach = bottleneck * SLACK
    ends = [_reached(figure, reach) for figure in best[1:] + rest[1:]]
    boundaries, total = _least_total(stages, ends, reach)
    return boundaries, bottleneck, total


def _both_sweeps(
    costs: StageCosts, spans: list[slice], limit: float
) -> tuple[list[FloatArray], list[FloatArray], list[list[Tile]]]:
    """F [q] of the first boundaries, B [q] of the last, the one where they meet in both; the tiles.

    The next stage is that at the end from which fewer boundaries can be reached.
    """
    best, rest = [_only(costs, 0)], [_only(costs, -1)]
    front: list[list[Tile]] = []
    back: list[list[Tile]] = []
    for _ in range(costs.problem.n_stages):
        starts, ends = _reached(best[-1], limit), _reached(rest[-1], limit)
        if starts.stop - starts.start <= ends.stop - ends.start:
            stage = len(front)
            front.append(list(_tiles(costs, stage, spans[stage + 1], starts, limit)))
            best.append(_forwards(front[-1], best[-1]))
        else:
            stage = costs.problem.n_stages - len(back) - 1
            back.append(list(_tiles(costs, stage, ends, spans[stage], limit)))
            rest.append(_backwards(back[-1], rest[-1]))
    return best, rest[::-1], front + back[::-1]


def _forwards(tiles: list[Tile], best: FloatArray) -> FloatArray:
    """F [q] where a stage ends, from F where it starts."""
    reached = np.full_like(best, np.inf)
    for tile in tiles:
        reached[tile.ends] = np.maximum(tile.cost, best[tile.starts]).min(axis=1)
    return reached


def _backwards(tiles: list[Tile], rest: FloatArray) -> FloatArray:
    """B [q] where a stage starts, from B where it ends."""
    reached = np.full_like(rest, np.inf)
    for tile in tiles:
        onwards = np.maximum(tile.cost, rest[tile.ends, None]).min(axis=0)
        np.minimum(reached[tile.starts], onwards, out=reached[tile.starts])
    return reached


def _tiles(
    costs: StageCosts, stage: int, ends: slice, starts: slice, limit: float
) -> Iterator[Tile]:
    """What of T_s between those boundaries may be within `limit`."""
    least = costs.least_seconds(stage)
    earliest = np.searchsorted(least, least - limit)
    if starts.start < starts.stop:
        latest = int(np.searchsorted(earliest, starts.stop - 1, side="right"))
        ends = _common(ends, slice(starts.start, latest))
    for first in range(ends.start, ends.stop, _ROWS):
        rows = slice(first, min(first + _ROWS, ends.stop))
        columns = _common(starts, slice(int(earliest[first]), rows.stop))
        if columns.start < columns.stop:
            yield Tile(rows, columns, costs.allowed(stage, rows, columns))


def _least_total(
    stages: list[list[Tile]], ends: list[slice], reach: float
) -> tuple[IntArray, float]:
    """The boundaries [k + 1] of least total with no stage above `reach`, and that total.

    Stage s ends within ends[s].
    """
    q = ends[-1].stop
    total, choices = np.full(q, np.inf), []
    total[0] = 0.0
    for tiles, end in zip(stages, ends, strict=True):
        before, total = total, np.full(q, np.inf)
        choice, start = np.zeros(q, dtype=np.int64), _reached(before, np.finfo(float).max)
        for tile in (whole.part(end, start) for whole in tiles):
            cost = tile.cost
            if cost.size:
                np.copyto(cost, np.inf, where=cost > reach)
                cost += before[tile.starts]
                least = cost.argmin(axis=1)
                choice[tile.ends] = least + tile.starts.start
                total[tile.ends] = cost[np.arange(len(cost)), least]
        choices.append(choice)
    boundaries = [q - 1]
    for choice in reversed(choices):
        boundaries.append(int(choice[boundaries[-1]]))
    return np.asarray(boundaries[::-1]), float(total[-1])


def _only(costs: StageCosts, at: int) -> FloatArray:
    """Shape [q]: 0 at one boundary and infinity at all others."""
    figure = np.full(len(costs.candidates), np.inf)
    figure[at] = 0.0
    return figure


def _reached(figure: FloatArray, limit: float) -> slice:
    """From the first boundary with a figure within `limit` to the last; empty without one."""
    return span(np.isfinite(figure) & (figure <= limit))


def _common(one: slice, other: slice) -> slice:
    """The part of both, empty where there is none."""
    start = max(one.start, other.start)
    return slice(start, max(start, min(one.stop, other.stop)))
