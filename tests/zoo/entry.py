"""What the zoo knows of one model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

ROWS = 4
"""Rows of every batch: two micro-batches of two."""
Inputs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """A tiny model with random weights, its inputs and its loss."""

    name: str
    build: Callable[[], tuple[nn.Module, Inputs]]
    """The model, and the keyword inputs of one batch of ROWS rows."""
    loss: Callable[[Any], torch.Tensor] | None = None
    """From the model's output; None: the output's own `loss`."""
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Further arguments of partition."""
    why: str = ""
    """What is special about it, or why it cannot be traced."""


def ids(length: int = 8, vocabulary: int = 50) -> torch.Tensor:
    """Token ids away from the small numbers that tokenizers reserve; shape [ROWS, length]."""
    return torch.randint(4, vocabulary, (ROWS, length))


def mean_square(*names: str) -> Callable[[Any], torch.Tensor]:
    """The loss of outputs that come without one: the mean square of some of their fields."""

    def loss(output: Any) -> torch.Tensor:
        found = [getattr(output, name) for name in names] if names else [output]
        return torch.stack([tensor.square().mean() for tensor in found]).sum()

    return loss
