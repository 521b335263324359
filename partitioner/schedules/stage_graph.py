"""Which stages wait for which: the stage graph, split by whether an edge crosses devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stagecut.ir.errors import ArgumentError
from stagecut.ir.schedule import Compute, Message, Phase, StageEdge

PASS = {
    Phase.FORWARD: Phase.FORWARD,
    Phase.BACKWARD: Phase.BACKWARD,
    Phase.BACKWARD_INPUT: Phase.BACKWARD,
}
"""The kind of message that a compute needs and makes; a BACKWARD_WEIGHT has neither."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The stages that one stage hears from, or speaks to, in one pass."""

    remote: tuple[int, ...]
    """On other devices: a message each."""
    local: tuple[int, ...]
    """On the same device: the order of its list is enough."""


@dataclass(frozen=True, slots=True)
class StageGraph:
    """For each pass (FORWARD, BACKWARD) and stage: whom it waits for and who waits for it."""

    before: dict[Phase, tuple[Neighbours, ...]]
    """Producers in the forward pass; consumers that send gradients back in the backward pass."""
    after: dict[Phase, tuple[Neighbours, ...]]
    """The other way round."""

    def needs(self, compute: Compute) -> list[Message]:
        """The messages that must have arrived before `compute`."""
        if compute.phase is Phase.BACKWARD_WEIGHT:
            return []
        phase = PASS[compute.phase]
        others = self.before[phase][compute.stage].remote
        return [Message(o, compute.stage, phase, compute.microbatch) for o in others]

    def makes(self, compute: Compute) -> list[Message]:
        """The messages that `compute` makes, the nearest stage's first."""
        if compute.phase is Phase.BACKWARD_WEIGHT:
            return []
        phase = PASS[compute.phase]
        others = self.after[phase][compute.stage].remote
        return [Message(compute.stage, o, phase, compute.microbatch) for o in others]


def stage_graph(device_of_stage: Sequence[int], edges: Iterable[StageEdge]) -> StageGraph:
    """Sorts edges by stage, pass and side; O(edges log edges).

    Raises:
        ArgumentError: an edge names no stage, or does not go from a lower stage to a higher.
    """
    k = len(device_of_stage)
    forward = merge_edges(k, edges)
    flow = {
        Phase.FORWARD: [(e.source, e.destination) for e in forward],
        Phase.BACKWARD: [(e.destination, e.source) for e in forward if e.gradient],
    }
    back = {phase: [(b, a) for a, b in pairs] for phase, pairs in flow.items()}
    return StageGraph(
        before={phase: _neighbours(pairs, device_of_stage) for phase, pairs in back.items()},
        after={phase: _neighbours(pairs, device_of_stage) for phase, pairs in flow.items()},
    )


def merge_edges(n_stages: int, edges: Iterable[StageEdge]) -> tuple[StageEdge, ...]:
    """Edges in order, one a pair of stages: with gradients if any of its twins has them.

    Raises:
        ArgumentError: an edge names no stage, or does not go from a lower stage to a higher.
    """
    gradient: dict[tuple[int, int], bool] = {}
    for edge in edges:
        if not 0 <= edge.source < edge.destination < n_stages:
            raise ArgumentError(
                f"{edge} is no edge of a pipeline of {n_stages} stages: "
                "number the stages from 0 so that every edge goes to a higher one"
            )
        pair = edge.source, edge.destination
        gradient[pair] = gradient.get(pair, False) or edge.gradient
    return tuple(StageEdge(a, b, gradient[a, b]) for a, b in sorted(gradient))


def _neighbours(
    pairs: list[tuple[int, int]], device_of_stage: Sequence[int]
) -> tuple[Neighbours, ...]:
    others: list[list[int]] = [[] for _ in device_of_stage]
    for stage, other in pairs:
        others[stage].append(other)
    return tuple(_split(stage, other, device_of_stage) for stage, other in enumerate(others))


def _split(stage: int, others: list[int], device_of_stage: Sequence[int]) -> Neighbours:
    near = sorted(others, key=lambda other: abs(other - stage))
    here = device_of_stage[stage]
    return Neighbours(
        remote=tuple(o for o in near if device_of_stage[o] != here),
        local=tuple(o for o in near if device_of_stage[o] == here),
    )
