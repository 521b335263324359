"""What counts as a loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stagecut.ir.errors import ArgumentError


def checked_loss(loss: Any, outputs: Sequence[Any]) -> torch.Tensor:
    """The loss, if it is one that trains: a scalar that the outputs' gradients reach.

    Raises:
        ArgumentError: it is not.
    """
    if not isinstance(loss, torch.Tensor) or loss.ndim:
        shown = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ArgumentError(
            f"loss_fn returned {shown}; it must return a tensor of shape (), the mean over rows"
        )
    differentiable = any(isinstance(x, torch.Tensor) and x.requires_grad for x in outputs)
    if differentiable and not loss.requires_grad:
        raise ArgumentError(
            "loss_fn returned a loss without gradient, which would train nothing; compute it from "
            "the model's output without detach(), item() or no_grad()"
        )
    return loss


def own_loss(output: Any) -> torch.Tensor:
    """The loss that a model computes itself.

    Raises:
        ArgumentError: its output is no loss.
    """
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", output)
    if isinstance(found, torch.Tensor) and found.ndim == 0:
        return found
    raise ArgumentError(
        f"the model returns {type(output).__name__}, which is no loss; give "
        "pipeline(..., loss_fn=...) that turns it into one"
    )
