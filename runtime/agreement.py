"""Ranks agree before anything is sent, or all raise the same error."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from stagecut.ir.errors import PlanError


def share(text: str) -> str:
    """Rank 0's text, on every rank."""
    box = [text]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def agree(problem: str | None) -> None:
    """Returns if no rank has a problem.

    Raises:
        PlanError: on every rank, with the problems of all.
    """
    problems: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    raise_together(problems)


def raise_together(problems: Sequence[str | None]) -> None:
    """Raises what `agree` describes."""
    found = [f"rank {rank}: {text}" for rank, text in enumerate(problems) if text]
    if found:
        raise PlanError("the ranks do not agree, nothing was sent:\n" + "\n".join(found))
