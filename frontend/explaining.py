"""What torch or the user's own code raised, as an error for people: where, what, and what to do."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from stagecut.frontend.example import Example
from stagecut.frontend.sources import is_users, short_path
from stagecut.frontend.symbols import dtype_name
from stagecut.frontend.trees import flatten, leaf_paths
from stagecut.ir.errors import TraceError

_SHOWN_INPUTS = 6


class ExampleFails(TraceError):
    """The model itself raises on the example: there is nothing to trace."""


def cannot_trace(model: nn.Module, error: Exception) -> TraceError:
    """The error for a model that torch.export gave up on."""
    return TraceError(
        "\n".join(
            [
                f"{type(model).__name__} cannot be traced: {_first_line(error)}",
                *_where(error),
                f"  {_remedy(str(error))}",
            ]
        )
    )


def fails_on_example(model: nn.Module, example: Example, error: Exception) -> ExampleFails:
    """The error for a model whose forward raises when it is run on the example."""
    return ExampleFails(
        "\n".join(
            [
                f"{type(model).__name__} fails on the example: {_first_line(error)}",
                *_where(error),
                f"  The example was {shown_inputs(example)}. Give one micro-batch as the model "
                "takes it: partition(model, n, example_args=(...), example_kwargs={...})",
            ]
        )
    )


def shown_inputs(example: Example) -> str:
    """The inputs as the user gave them: `input_ids int64[4, 16], scale 0.5`."""
    leaves, paths = flatten(example.kwargs)[0], leaf_paths(example.kwargs)
    shown = [
        f"{path} {_shown(leaf, example.rows if own else None)}"
        for path, leaf, own in zip(paths, leaves, example.batched, strict=True)
    ]
    more = f" and {len(shown) - _SHOWN_INPUTS} more" if len(shown) > _SHOWN_INPUTS else ""
    return ", ".join(shown[:_SHOWN_INPUTS]) + more


def _shown(leaf: Any, rows: int | None) -> str:
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)[:40]
    shape = list(leaf.shape) if rows is None else [rows, *leaf.shape[1:]]
    return f"{dtype_name(leaf.dtype)}{shape}"


def _first_line(error: Exception) -> str:
    if "fake tensor in the exported program" in str(error):
        return "it makes a tensor that torch.export cannot follow, as .data and torch.vmap do"
    if _by_data(str(error)):
        return "a Python decision depends on the values of a tensor"
    first = next((line for line in str(error).splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {first[:300]}"


def _where(error: Exception) -> Sequence[str]:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_users(f.filename)]
    if not frames:
        return []
    frame = frames[-1]
    place = f"  at {short_path(frame.filename)}:{frame.lineno}, in {frame.name}"
    return [place, f"    {frame.line}"] if frame.line else [place]


def _by_data(message: str) -> bool:
    return "data-dependent" in message or "unbacked" in message or "u0" in message


def _remedy(message: str) -> str:
    if _by_data(message):
        return (
            "Use torch.where or masking; or put the part that decides into a module of its own, "
            "which then runs as it is, uncut."
        )
    if "igher order operator" in message:
        return (
            "torch.cond and its kin have bodies that cannot be cut; compute both sides and "
            "choose with torch.where."
        )
    if "fake tensor in the exported program" in message:
        return "Put what makes it into a module of its own, which then runs as it is, uncut."
    if "pytree" in message or "register" in message:
        return (
            "Return tensors, tuples, lists, dicts or dataclasses; another class is declared with "
            "torch.utils._pytree.register_pytree_node(cls, ..., serialized_type_name=...)."
        )
    return (
        "Check first that model(*example_args, **example_kwargs) runs as it is. Torch's own "
        "account is this exception's __cause__."
    )
