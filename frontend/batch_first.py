"""Modules that take sequences before rows: what a cut along dimension 0 must not be."""

from __future__ import annotations

from torch import nn


def sequence_first(model: nn.Module) -> tuple[str, ...]:
    """A note on torch's modules with `batch_first=False`, if the model has any.

    A model may well transpose before it calls them, so it is only a note.
    """
    names = [
        f"{name or 'the model'} ({type(module).__name__})"
        for name, module in model.named_modules()
        if getattr(module, "batch_first", True) is False
    ]
    if not names:
        return ()
    shown = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    return (
        f"{shown} has batch_first=False: micro-batches are cut along dimension 0 of the model's "
        "inputs, which must be the batch, not the sequence",
    )
