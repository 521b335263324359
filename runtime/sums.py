"""Weights that several ranks hold: equal values at the start, one gradient sum a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from stagecut.ir.program import PipelineProgram


@dataclass(frozen=True, slots=True)
class Holders:
    """Weights that the same ranks hold: tied over stages, or copied over replicas."""

    ranks: tuple[int, ...]
    stages: tuple[int, ...]
    """Those that hold them, in every replica."""
    names: tuple[str, ...]
    group: dist.ProcessGroup


def holders(program: PipelineProgram, ranks_of_stage: Sequence[Sequence[int]]) -> list[Holders]:
    """Every set of ranks that holds weights together; called on every rank at once.

    Args:
        program: Says which stages hold a weight.
        ranks_of_stage: The rank of each stage in every replica.
    """
    stages: dict[str, tuple[int, ...]] = {}
    for stage in program.stages:
        for weight in stage.weights:
            stages[weight.name] = (*stages.get(weight.name, ()), stage.index)
    names: dict[tuple[int, ...], list[str]] = {}
    for name, users in stages.items():
        names.setdefault(users, []).append(name)
    found = []
    for users, held in names.items():
        ranks = tuple(sorted({rank for stage in users for rank in ranks_of_stage[stage]}))
        if len(ranks) > 1:
            found.append(Holders(ranks, users, tuple(held), dist.new_group(list(ranks))))
    return found


def copy_from_the_first(shared: Holders, weights: Sequence[torch.Tensor]) -> None:
    """Gives every holder the values of the first, whatever each rank's model had."""
    with torch.no_grad():
        for weight in weights:
            dist.broadcast(weight.data, src=shared.ranks[0], group=shared.group)


def sum_gradients(shared: Holders, weights: Sequence[torch.Tensor]) -> None:
    """Adds up the holders' gradients, those of one dtype in one message; none counts as zero."""
    trained = [weight for weight in weights if weight.requires_grad]
    for weight in trained:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
    for gradients in _by_dtype([weight.grad for weight in trained if weight.grad is not None]):
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat, group=shared.group)
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


def _by_dtype(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        yield [tensor for tensor in tensors if tensor.dtype is dtype]
