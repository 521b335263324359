"""The load of a stage between every two prefixes of boundaries in a row, as matrix products.

The formula, and what it leaves out, is in chains.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagecut.ir.problem import FloatArray, IntArray
from stagecut.partitioner.arrays import BoolArray
from stagecut.partitioner.prefixes import Level
from stagecut.partitioner.sidings import Joined


@dataclass(frozen=True, slots=True, eq=False)
class Crossing:
    """What the prefixes of a level have inside and make cross."""

    level: Level
    work: FloatArray
    """Shape [L]."""
    crosses: BoolArray
    """Shape [L, values]."""
    users: NDArray[np.int32]
    """Shape [L, values]: how many users are inside."""

    @staticmethod
    def of(graph: Joined, level: Level) -> Crossing:
        """What they have and make cross in `graph`."""
        m, values = len(graph.root), graph.values
        value = np.repeat(np.arange(len(values)), np.diff(values.offsets))
        is_user = np.ones(len(values.members), dtype=bool)
        is_user[values.offsets[:-1]] = False
        user, value = values.members[is_user], value[is_user]
        place = np.full(m, -1)
        place[level.free] = np.arange(len(level.free))
        free = place[user] >= 0
        used = np.zeros((len(level.free), len(values)), dtype=np.float32)
        used[place[user[free]], value[free]] = 1.0
        surely = np.bincount(value[level.inside[user]], minlength=len(values)).astype(np.float32)
        users = level.members @ used + surely
        has = np.broadcast_to(level.inside, (len(level.members), m)).copy()
        has[:, level.free] = level.members > 0
        made = has[:, values.members[values.offsets[:-1]]]
        return Crossing(
            level,
            level.sums(graph.work),
            made & (users < np.diff(values.offsets) - 1),
            users.astype(np.int32),
        )


def loads_between(
    graph: Joined, stage: int, slowdown: float, start: Crossing, stop: Crossing
) -> FloatArray:
    """Shape [L, L']: the load of each stage between two levels; infinity for none."""
    entering, leaving = graph.entering[stage], graph.leaving[stage]
    load = slowdown * (stop.work[None, :] - start.work[:, None])
    load += (start.crosses @ entering)[:, None] + (stop.crosses @ leaving)[None, :]
    over = np.flatnonzero(start.crosses.any(axis=0) & stop.crosses.any(axis=0))
    load -= (start.crosses[:, over] * leaving[over]) @ stop.crosses[:, over].T.astype(np.float64)
    begun, ended, price = _unused(start, stop, over, entering)
    load -= (begun * price) @ ended.T
    load[_outside(start.level, stop.level)] = np.inf
    return load


def _unused(
    start: Crossing, stop: Crossing, over: IntArray, price: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Which prefixes cross a value with one number of users inside: columns, and their prices.

    A value that crosses both boundaries with as many users inside has none in between.
    """
    begun, ended = [np.zeros((len(start.work), 0))], [np.zeros((len(stop.work), 0))]
    paid = []
    for value in over.tolist():
        crosses, users = start.crosses[:, value], start.users[:, value]
        crosses_later, users_later = stop.crosses[:, value], stop.users[:, value]
        for count in np.intersect1d(users[crosses], users_later[crosses_later]):
            begun.append((crosses & (users == count))[:, None].astype(np.float64))
            ended.append((crosses_later & (users_later == count))[:, None].astype(np.float64))
            paid.append(price[value])
    return np.concatenate(begun, axis=1), np.concatenate(ended, axis=1), np.asarray(paid)


def _outside(start: Level, stop: Level) -> BoolArray:
    """Shape [L, L']: whether the first prefix has something that the second lacks."""
    _, at_start, at_stop = np.intersect1d(start.free, stop.free, return_indices=True)
    lacking: BoolArray = start.members[:, at_start] @ (1 - stop.members[:, at_stop]).T > 0
    return lacking
