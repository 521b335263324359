"""What counts as a loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from stagecut.ir.errors import ArgumentError


def check_call(loss_fn: Callable[..., Any] | None, target: Any) -> None:
    """Returns if `loss_fn` can be called with the output, and the target where there is one.

    Raises:
        ArgumentError: it cannot.
    """
    if loss_fn is None:
        if target is not None:
            raise ArgumentError(
                "train_step got a target, and there is no loss_fn to compare it with; give "
                "pipeline(..., loss_fn=...)"
            )
        return
    if getattr(loss_fn, "reduction", "mean") == "sum":
        raise ArgumentError(
            "loss_fn has reduction='sum', and the losses of micro-batches are averaged by rows; "
            "use 'mean', and multiply the learning rate if you want the sum's gradients"
        )
    try:
        called_as = loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn
        signature = inspect.signature(called_as)
    except (TypeError, ValueError):
        return  # built in: it says so itself when it is called
    given = (object(),) if target is None else (object(), target)
    try:
        signature.bind(*given)
    except TypeError as error:
        called = "loss_fn(output)" if target is None else "loss_fn(output, target)"
        remedy = "pass train_step(..., target=...)" if target is None else "pass no target"
        raise ArgumentError(
            f"the loss is called as {called}, and loss_fn{signature} does not fit that: {error}; "
            f"{remedy}, or give another loss_fn"
        ) from error


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
