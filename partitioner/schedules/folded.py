"""Folded placement: devices own any stages, in any order; work is dealt out greedily.

Legend:  k stages, d devices, m micro-batches, s a stage, i a micro-batch.

    stages 0 1 2 on devices 0 1 0, m = 2, a backward as long as a forward
    device 0   0F0 0F1 2F0 2B0 2F1 2B1 0B0 0B1
    device 1       1F0 1F1     1B0     1B1

A list schedule on the stages' costs, or unit costs (forward 1, backward 2): whichever device can
start something soonest does; at the same moment a backward goes before a forward, a lower
micro-batch before a higher, and later stages first. Stage s holds at most k - s micro-batches, as
in 1F1B, and d - 1 more where devices own several stages (interleaved 1F1B holds as many more; on 2
to 4 devices it took a third to four fifths of the bubble away). The oldest micro-batch is never
held up by the limit, hence no deadlock. Stages are taken as a chain, which satisfies every stage
graph whose edges go to higher stages. O(k m k).

List scheduling: Graham, "Bounds on Multiprocessing Timing Anomalies", 1969. The in-flight limit:
Narayanan et al., "PipeDream", 2019, section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagecut.ir.errors import ArgumentError
from stagecut.ir.schedule import Compute, Schedule
from stagecut.partitioner.schedules.computes import backward, forward

Costs = tuple[float, float]
"""Of a stage's forward, and of its backward."""
UNIT_COSTS: Costs = (1.0, 2.0)
Start = tuple[float, int, int, int]
"""(earliest start, 0 for a backward and 1 for a forward, micro-batch, -stage): the least goes."""


def folded(
    device_of_stage: Sequence[int], n_microbatches: int, costs: Sequence[Costs] = ()
) -> Schedule:
    """A 1F1B-like schedule for stages placed at will, as METIS plans place them.

    `costs`, shape [k]: what each stage's forward and backward take, in any unit.

    Raises:
        ArgumentError: a device has no stage, or there is no micro-batch.
    """
    owner, d = tuple(device_of_stage), max(device_of_stage, default=-1) + 1
    if set(owner) != set(range(d)) or not owner:
        raise ArgumentError(f"stages lie on devices {owner}; number the devices 0, 1, ... by use")
    if n_microbatches < 1:
        raise ArgumentError(f"{n_microbatches} micro-batches; give 1 or more")
    state = _Progress(owner, n_microbatches, costs or [UNIT_COSTS] * len(owner))
    rows: list[list[Compute]] = [[] for _ in range(d)]
    for _ in range(2 * len(owner) * n_microbatches):
        start, kind, microbatch, negative_stage = min(state.starts())
        stage = -negative_stage
        state.run(start, kind, stage)
        rows[owner[stage]].append((forward if kind else backward)(stage, microbatch))
    return Schedule("folded", owner, n_microbatches, tuple(map(tuple, rows)))


class _Progress:
    """When each device is free and each stage's results are ready."""

    def __init__(self, owner: tuple[int, ...], m: int, costs: Sequence[Costs]) -> None:
        self.owner, self.k, self.m, self.costs = owner, len(owner), m, costs
        self.free = [0.0] * (max(owner) + 1)
        self.slack = len(self.free) - 1 if self.k > len(self.free) else 0
        self.forwards: list[list[float]] = [[] for _ in owner]
        self.backwards: list[list[float]] = [[] for _ in owner]

    def starts(self) -> list[Start]:
        """What each stage could do next, if anything."""
        found = []
        for s, device in enumerate(self.owner):
            free, done, back = self.free[device], len(self.forwards[s]), len(self.backwards[s])
            before = self.forwards[s - 1] if s else [0.0] * self.m
            if done < len(before) and done - back < self.k - s + self.slack:
                found.append((max(free, before[done]), 1, done, -s))
            after = self.backwards[s + 1] if s + 1 < self.k else self.forwards[s]
            if back < done and back < len(after):
                found.append((max(free, after[back]), 0, back, -s))
        return found

    def run(self, start: float, kind: int, stage: int) -> None:
        """Runs what `starts` offered."""
        end = start + self.costs[stage][0 if kind else 1]
        (self.forwards if kind else self.backwards)[stage].append(end)
        self.free[self.owner[stage]] = end
