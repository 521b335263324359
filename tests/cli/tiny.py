"""Small models that the tests of the command line name as `tests.cli.tiny:...`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # Without a bias: the branch goes the other way for -x, whatever the weights are.
        self.layer = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if y.sum() > 0:  # a branch on data
            return y
        return -y


class OwnLoss(nn.Module):
    """Returns a dict with its own loss, as transformers' models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 11))

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(self.embed(ids))
        return {"loss": nn.functional.cross_entropy(logits, ids), "logits": logits}


def mlp() -> tuple[nn.Module, tuple[Any, ...]]:
    layers = [layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.Tanh())]
    return nn.Sequential(*layers), (torch.randn(2, 8),)


def without_example() -> nn.Module:
    # Two inputs: the first layer does not tell what goes in.
    return nn.Bilinear(8, 8, 8)


def own_loss() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    return OwnLoss(), (), {"ids": torch.tensor([0, 10])}


def untraceable() -> tuple[nn.Module, tuple[Any, ...]]:
    return Untraceable(), (torch.randn(2, 8),)


def branching() -> tuple[nn.Module, tuple[Any, ...]]:
    """One of three modules cannot be traced, and runs as it is."""
    return nn.Sequential(nn.Linear(8, 8), Untraceable(), nn.Linear(8, 8)), (torch.randn(2, 8),)


def wide() -> tuple[nn.Module, tuple[Any, ...]]:
    from tests.face.test_fewer import Wide, X

    return Wide(), (X,)
