"""The weight table: every parameter and buffer of a model, by identity.

embed.weight ──┐
               ├── one tensor, one Weight(name="embed.weight", aliases=("head.weight",))
head.weight ───┘
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from stagecut.frontend.symbols import dim_of, dtype_name
from stagecut.ir.graph import Weight
from stagecut.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class WeightTable:
    """The weights of one model and their canonical names."""

    weights: tuple[Weight, ...]
    canonical: Mapping[str, str]
    """Every name, tied ones included, to the name of its Weight."""


def weight_table(model: nn.Module, constants: Mapping[str, torch.Tensor]) -> WeightTable:
    """The table of a model's parameters and buffers, and of the tensors its trace lifted out."""
    saved = set(model.state_dict(keep_vars=True))
    named: list[tuple[str, torch.Tensor, str]] = [
        *((n, p, "parameter") for n, p in model.named_parameters(remove_duplicate=False)),
        *((n, b, "buffer") for n, b in model.named_buffers(remove_duplicate=False)),
    ]
    known = {name for name, _, _ in named}
    named += [(n, t, "constant") for n, t in constants.items() if n not in known]
    names: dict[int, list[str]] = {}
    for name, tensor, _ in named:
        names.setdefault(id(tensor), []).append(name)
    weights, canonical = [], {}
    for name, tensor, kind in named:
        first, *others = names[id(tensor)]
        canonical[name] = first
        if name == first:
            weights.append(_weight(name, tensor, kind, tuple(others), name in saved))
    return WeightTable(tuple(weights), canonical)


def _weight(
    name: str, tensor: torch.Tensor, kind: str, aliases: tuple[str, ...], saved: bool
) -> Weight:
    trainable = kind == "parameter" and tensor.requires_grad
    shape = tuple(map(dim_of, tensor.shape))
    dtype = dtype_name(tensor.dtype)
    return Weight(name, TensorType(shape, dtype), kind, trainable, saved, aliases)  # type: ignore[arg-type]
