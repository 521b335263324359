"""Runs torch.export and turns what it raises into errors for people."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from stagecut.frontend.example import Example
from stagecut.frontend.hints import SpeedHints
from stagecut.frontend.sources import is_users, short_path
from stagecut.frontend.trees import flatten
from stagecut.ir.errors import TraceError


def export(model: nn.Module, example: Example) -> torch.export.ExportedProgram:
    """The model's training graph, the batch dimension symbolic where the model allows it.

    Raises:
        TraceError: with the user's file and line, the construct and what to do.
    """
    shapes: Any = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]
    leaves, _ = flatten(example.kwargs)
    for leaf, batched in zip(leaves, example.batched, strict=True):
        if batched:
            shapes[leaf] = {0: torch.export.Dim.AUTO}
    try:
        with _quiet(), SpeedHints():
            return torch.export.export(
                model, example.args, example.kwargs, dynamic_shapes=shapes, strict=False
            )
    except Exception as error:
        raise TraceError(_explain(model, error)) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Torch logs at length before it raises; the same facts are in the exception."""
    loggers = [logging.getLogger(name) for name in ("torch.export", "torch._export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _explain(model: nn.Module, error: Exception) -> str:
    first = next((line for line in str(error).splitlines() if line.strip()), "no message")
    lines = [f"{type(model).__name__} cannot be traced: {type(error).__name__}: {first[:300]}"]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_users(f.filename)]
    if frames:
        frame = frames[-1]
        lines += [f"  at {short_path(frame.filename)}:{frame.lineno}, in {frame.name}"]
        lines += [f"    {frame.line}"] if frame.line else []
    return "\n".join([*lines, _remedy(str(error))])


def _remedy(message: str) -> str:
    if "data-dependent" in message or "unbacked" in message or "u0" in message:
        return (
            "  A Python branch, loop or shape depends on the values of a tensor. Use torch.where "
            "or masking, or move the decision out of forward."
        )
    if "pytree" in message or "register" in message:
        return (
            "  Register the container with torch.export.register_dataclass, or return tensors, "
            "tuples, lists and dicts."
        )
    return (
        "  Check first that model(*example_args, **example_kwargs) runs as it is. Torch's own "
        "account is this exception's __cause__."
    )
