"""Before a step every rank says what it comes with; none begins unless they fit together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from stagecut.ir.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Arrival:
    """What one process comes to a step with."""

    rows: int
    """Of its replica's batch."""
    training: bool
    seed: int = 0
    """What the step would draw from, were this the first process."""
    problem: str | None = None
    """Why it cannot begin."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a step has in every process."""

    rows: int
    """Over all replicas that take part."""
    seed: int


def enter(arrival: Arrival, group: dist.ProcessGroup, replicas: Sequence[int]) -> Entry:
    """Meets the other ranks of a group.

    Args:
        arrival: This rank's.
        group: A gloo group, so that no GPU is waited for.
        replicas: The replica of each rank of the group.

    Raises:
        ArgumentError: on every rank, where one has a problem or they come to different steps.
    """
    ready = arrival.problem is None
    mine = torch.tensor([ready, arrival.training, arrival.rows, arrival.seed], dtype=torch.int64)
    found = [torch.empty_like(mine) for _ in replicas]
    dist.all_gather(found, mine, group=group)
    if not all(bool(one[0]) for one in found):
        raise ArgumentError(_problems(arrival.problem, group, len(replicas)))
    if len({bool(one[1]) for one in found}) > 1:
        raise ArgumentError(
            "some ranks train and others run inference: every rank makes the same calls, in the "
            "same order"
        )
    rows = {replica: int(one[2]) for replica, one in zip(replicas, found, strict=True)}
    differing = [
        f"rank {dist.get_global_rank(group, place)} has {int(one[2])} rows"
        for place, (replica, one) in enumerate(zip(replicas, found, strict=True))
        if int(one[2]) != int(found[replicas.index(replica)][2])
    ]
    if differing:
        first = f"rank {dist.get_global_rank(group, 0)} has {int(found[0][2])}"
        raise ArgumentError(
            f"the ranks of a pipeline come with different batches: {first}, "
            f"{', '.join(differing)}; every rank passes the same whole batch, and no sampler "
            "shares it out"
        )
    return Entry(sum(rows.values()), int(found[0][3]))


def _problems(mine: str | None, group: dist.ProcessGroup, world: int) -> str:
    texts: list[str | None] = [None] * world
    dist.all_gather_object(texts, mine, group=group)
    told = [
        f"rank {dist.get_global_rank(group, place)}: {text}"
        for place, text in enumerate(texts)
        if text
    ]
    return "the step was not begun on any rank:\n" + "\n".join(told)
