r"""A walk through a graph in topological order, in runs of one part each.

Legend:  n clusters, d parts, one a device, k runs.

                                     parts A, A, A, B, B, A, A      runs  A A A | B B | A A
    a1 -- a2 -- a3 -- b1 -- b2 -- a4 -- a5                               0       1     2
     \     \_____________________/      /
      \_______________________________/

It leaves a part only where nothing more of it is ready, for the part that can then do most. Every
value goes from a run to itself or a later one: runs are the stages of a pipeline, of which one
device may have several.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray, Problem


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """Stages of clusters, and the devices of stages."""

    stage: IntArray
    """Shape [n]: values 0..k-1, in an order that precedence allows."""
    device_of_stage: tuple[int, ...]
    """Shape [k]; devices are numbered by the stage that each has first."""


@dataclass(frozen=True, slots=True)
class Runs:
    """A topological order in pieces, each on one device; neighbours are on different ones."""

    clusters: tuple[tuple[int, ...], ...]
    device: tuple[int, ...]

    def given(self, run: int, device: int) -> Runs:
        """With one run on another device, and neighbours on the same device joined."""
        clusters: list[tuple[int, ...]] = []
        devices: list[int] = []
        for index, (mine, owner) in enumerate(zip(self.clusters, self.device, strict=True)):
            owner = device if index == run else owner
            if devices and devices[-1] == owner:
                clusters[-1] += mine
            else:
                clusters.append(mine)
                devices.append(owner)
        return Runs(tuple(clusters), tuple(devices))

    def neighbours(self, run: int) -> set[int]:
        """The devices of the runs before and after one."""
        return {*self.device[max(run - 1, 0) : run], *self.device[run + 1 : run + 2]}

    def shifted(self, border: int, by: int) -> Runs | None:
        """With the first `by` clusters after a border before it, or -`by` the other way."""
        left, right = self.clusters[border], self.clusters[border + 1]
        both, cut = left + right, len(left) + by
        if not 0 < cut < len(both):
            return None
        made = (*self.clusters[:border], both[:cut], both[cut:], *self.clusters[border + 2 :])
        return Runs(made, self.device)

    def owners(self, n: int) -> IntArray:
        """Shape [n]: the device of every cluster."""
        owner = np.empty(n, dtype=np.int64)
        for mine, device in zip(self.clusters, self.device, strict=True):
            owner[list(mine)] = device
        return owner

    def fold(self, n: int) -> Fold:
        """As stages."""
        stage = np.empty(n, dtype=np.int64)
        for index, mine in enumerate(self.clusters):
            stage[list(mine)] = index
        number = {device: i for i, device in enumerate(dict.fromkeys(self.device))}
        return Fold(stage, tuple(number[device] for device in self.device))


def walk(problem: Problem, part: IntArray) -> Runs:
    """The runs of parts 0..d-1 (shape [n]); what is pinned to the last stage comes last."""
    return _Walk(problem, part).runs()


def mean_seconds(problem: Problem) -> FloatArray:
    """Shape [n]: forward and backward of each cluster, on average over kinds of device."""
    mean: FloatArray = (problem.forward_seconds + problem.backward_seconds).mean(axis=0)
    return mean


class _Walk:
    """A walk in topological order that leaves a part only where nothing more of it is ready."""

    def __init__(self, problem: Problem, part: IntArray) -> None:
        self.part = part.tolist()
        self.after: list[list[int]] = [[] for _ in range(problem.n)]
        for a, b in problem.edges.tolist():
            self.after[a].append(b)
        end = set(np.flatnonzero(problem.pins == problem.n_stages - 1).tolist())
        self.first = [c for c in range(problem.n) if c not in end]
        self.last = sorted(end)
        self.seconds = mean_seconds(problem).tolist()
        self.d = problem.n_stages

    def runs(self) -> Runs:
        """What the end holds comes in a run of its own, after all else."""
        clusters, devices = self._pieces()
        if self.last:
            clusters.append(tuple(self.last))
            devices.append(self.part[self.last[0]])
        return Runs(tuple(clusters), tuple(devices)).given(-1, -1)

    def _pieces(self) -> tuple[list[tuple[int, ...]], list[int]]:
        waiting = self._waiting()
        left = len(self.first)
        clusters: list[tuple[int, ...]] = []
        devices: list[int] = []
        while left:
            reached = [self._reached(device, waiting) for device in range(self.d)]
            device = max(
                range(self.d), key=lambda p: (sum(self.seconds[c] for c in reached[p]), -p)
            )
            mine = reached[device] or next(filter(None, reached))
            for cluster in mine:
                waiting.pop(cluster)
                for other in self.after[cluster]:
                    if other in waiting:
                        waiting[other] -= 1
            clusters.append(tuple(mine))
            devices.append(self.part[mine[0]])
            left -= len(mine)
        return clusters, devices

    def _waiting(self) -> dict[int, int]:
        """For each cluster of the walk, how many it still waits for."""
        waiting = dict.fromkeys(self.first, 0)
        for cluster in self.first:
            for other in self.after[cluster]:
                if other in waiting:
                    waiting[other] += 1
        return waiting

    def _reached(self, part: int, waiting: dict[int, int]) -> list[int]:
        """What of a part can run now without any other, in topological order."""
        ready = [c for c, count in waiting.items() if not count and self.part[c] == part]
        heapq.heapify(ready)
        left: dict[int, int] = {}
        found = []
        while ready:
            cluster = heapq.heappop(ready)
            found.append(cluster)
            for other in self.after[cluster]:
                if other in waiting and self.part[other] == part:
                    left[other] = left.get(other, waiting[other]) - 1
                    if not left[other]:
                        heapq.heappush(ready, other)
        return found
