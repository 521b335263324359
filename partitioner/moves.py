"""Moving single clusters between stages, with every stage's load kept exact move by move.

Costs depend only on which stages an item (value, weight or saved storage) touches, and on its
producer's stage, so one count for each (item, stage) suffices: a move changes a cost only where a
count leaves or reaches zero, or where a producer moves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from stagecut.ir.problem import Incidence, Problem
from stagecut.ir.solution import Assignment
from stagecut.partitioner.arrays import BoolArray, groups
from stagecut.partitioner.evaluate import LIMIT_TOLERANCE, evaluate

Change = dict[int, float]
"""Seconds or bytes to add to some stages."""


class Stages:
    """A mutable assignment: stages, their loads and memory, and what a move would change."""

    def __init__(self, problem: Problem, assignment: Assignment) -> None:
        """Counts everything once, in O(memberships)."""
        stage = assignment.stage
        scored = evaluate(problem, assignment)
        self.problem = problem
        self.stage: list[int] = stage.tolist()
        self.load: list[float] = scored.load_seconds.tolist()
        self.memory: list[float] = scored.memory_bytes.tolist()
        self.size: list[int] = np.bincount(stage, minlength=problem.n_stages).tolist()
        self.largest = max(self.load)
        """The largest of the loads."""
        by_kind = (problem.forward_seconds + problem.backward_seconds).tolist()
        self._seconds: list[list[float]] = [by_kind[kind] for kind in problem.device_kind]
        self._values = _Touches(problem.values, self.stage)
        self._weights = _Touches(problem.weights, self.stage)
        self._saved = _Touches(problem.saved, self.stage)
        self._producer = problem.values.members[problem.values.offsets[:-1]].tolist()
        crossing = np.diff(problem.values.offsets) > 1
        synced = (np.diff(problem.weights.offsets) > 1) & (problem.weight_sync_seconds > 0)
        self._crossing = _items_of(problem.values, crossing, problem.n)
        self._synced = _items_of(problem.weights, synced, problem.n)
        self._latency: list[list[float]] = problem.link_latency_seconds.tolist()
        self._per_byte: list[list[float]] = problem.link_seconds_per_byte.tolist()
        self._forward_bytes: list[float] = problem.value_forward_bytes.tolist()
        self._backward_bytes: list[float] = problem.value_backward_bytes.tolist()
        self._per_consumer = problem.send_rule == "per_consumer"
        self._limit = problem.memory_limit_bytes * LIMIT_TOLERANCE
        self._limited = bool(np.isfinite(self._limit).any())
        self._workspace: list[float] = scored.workspace_bytes.tolist()

    def assignment(self) -> Assignment:
        """The stages as they are now."""
        return Assignment(np.asarray(self.stage, dtype=np.int64))

    def load_change(self, cluster: int, to: int) -> Change:
        """What moving `cluster` to stage `to` would add to the loads."""
        change: Change = defaultdict(float)
        at = self.stage[cluster]
        change[at] -= self._seconds[at][cluster]
        change[to] += self._seconds[to][cluster]
        for value in self._crossing[cluster]:
            self._value_change(change, value, cluster, to)
        for weight in self._synced[cluster]:
            self._sync_change(change, weight, at, to)
        return change

    def memory_change(self, cluster: int, to: int) -> Change:
        """What the move would add to the memory; the stage left keeps its workspace until `move`.

        That overstates the memory of the stage left and no other.
        """
        problem, at = self.problem, self.stage[cluster]
        change: Change = defaultdict(float)
        for touches, size, factor in (
            (self._weights, problem.weight_bytes, np.ones(problem.n_stages)),
            (self._saved, problem.saved_bytes, problem.in_flight),
        ):
            for item in touches.of_cluster[cluster]:
                counts = touches.counts(item)
                if counts[at] == 1:
                    change[at] -= float(size[item] * factor[at])
                if not counts.get(to):
                    change[to] += float(size[item] * factor[to])
        needed = float(problem.workspace_bytes[cluster])
        if needed > self._workspace[to]:
            change[to] += needed - self._workspace[to]
        return change

    def fits(self, cluster: int, to: int) -> bool:
        """Whether the move overfills no stage, or none further."""
        if not self._limited:
            return True
        return all(
            added <= 0 or self.memory[stage] + added <= self._limit[stage]
            for stage, added in self.memory_change(cluster, to).items()
        )

    def overflow(self) -> float:
        """Bytes above the limits, summed over the stages."""
        if not self._limited:
            return 0.0
        return float(np.maximum(np.asarray(self.memory) - self._limit, 0.0).sum())

    def move(self, cluster: int, to: int) -> None:
        """Moves `cluster` to stage `to`."""
        at = self.stage[cluster]
        for stage, seconds in self.load_change(cluster, to).items():
            self.load[stage] += seconds
        self.largest = max(self.load)
        if self._limited:
            for stage, added in self.memory_change(cluster, to).items():
                self.memory[stage] += added
        for touches in (self._values, self._weights, self._saved):
            touches.move(cluster, at, to)
        self.stage[cluster] = to
        self.size[at] -= 1
        self.size[to] += 1
        if self._limited:
            self._move_workspace(cluster, at, to)

    def _move_workspace(self, cluster: int, at: int, to: int) -> None:
        needed = float(self.problem.workspace_bytes[cluster])
        self._workspace[to] = max(self._workspace[to], needed)
        if needed and needed == self._workspace[at]:
            left = np.asarray(self.stage) == at
            largest = float(self.problem.workspace_bytes[left].max(initial=0.0))
            self.memory[at] -= self._workspace[at] - largest
            self._workspace[at] = largest

    def _value_change(self, change: Change, value: int, cluster: int, to: int) -> None:
        at, counts = self.stage[cluster], self._values.counts(value)
        producer = self._producer[value]
        home = self.stage[producer]
        leaves, comes = counts[at] == 1, not counts.get(to)
        if cluster != producer and self._per_consumer:
            if leaves:
                self._charge(change, value, home, (at,), -1.0)
            if comes:
                self._charge(change, value, home, (to,), 1.0)
        elif cluster == producer or leaves or comes:
            stages = {stage for stage, count in counts.items() if count}
            self._charge(change, value, home, stages, -1.0)
            if leaves:
                stages.discard(at)
            stages.add(to)
            self._charge(change, value, to if cluster == producer else home, stages, 1.0)

    def _charge(
        self, change: Change, value: int, home: int, stages: Iterable[int], sign: float
    ) -> None:
        """Adds what each stage pays for a value made in stage `home` and touched by `stages`."""
        most_there = most_back = 0.0
        for stage in stages:
            if stage == home:
                continue
            there, back = self._trip(value, home, stage)
            seconds = sign * (there + back)
            change[stage] += seconds
            if self._per_consumer:
                change[home] += seconds
            else:
                most_there, most_back = max(most_there, there), max(most_back, back)
        if not self._per_consumer:
            change[home] += sign * (most_there + most_back)

    def _trip(self, value: int, source: int, destination: int) -> tuple[float, float]:
        """Seconds to move the value's activation there, and its gradient back."""
        forward, backward = self._forward_bytes[value], self._backward_bytes[value]
        latency, per_byte = self._latency, self._per_byte
        there = latency[source][destination] + forward * per_byte[source][destination]
        back = latency[destination][source] + backward * per_byte[destination][source]
        return there, back if backward > 0 else 0.0

    def _sync_change(self, change: Change, weight: int, at: int, to: int) -> None:
        seconds = float(self.problem.weight_sync_seconds[weight])
        counts = self._weights.counts(weight)
        before = {stage for stage, count in counts.items() if count}
        after = (before - {at} if counts[at] == 1 else before) | {to}
        for stages, sign in ((before, -1.0), (after, 1.0)):
            for stage in stages if len(stages) > 1 else ():
                change[stage] += sign * seconds


class _Touches:
    """How many members of each item each stage has; counted when first asked for."""

    def __init__(self, items: Incidence, stage: list[int]) -> None:
        """`stage` is the live list of stages, changed only after `move` is told."""
        self._items = items
        self._stage = stage
        self._counts: dict[int, dict[int, int]] = {}
        self.of_cluster = _items_of(items, np.ones(len(items), dtype=bool), len(stage))

    def counts(self, item: int) -> dict[int, int]:
        """Members of the item in each stage that ever had one."""
        if item not in self._counts:
            counts: dict[int, int] = {}
            for member in self._items[item].tolist():
                at = self._stage[member]
                counts[at] = counts.get(at, 0) + 1
            self._counts[item] = counts
        return self._counts[item]

    def move(self, cluster: int, at: int, to: int) -> None:
        for item in self.of_cluster[cluster]:
            counts = self.counts(item)
            counts[at] -= 1
            counts[to] = counts.get(to, 0) + 1


def _items_of(items: Incidence, kept: BoolArray, n: int) -> list[list[int]]:
    """For each of n clusters the `kept` items that it is a member of."""
    item = np.repeat(np.arange(len(items)), np.diff(items.offsets))
    chosen = kept[item]
    return groups(items.members[chosen], item[chosen], n)
