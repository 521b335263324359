"""How large an example micro-batch is to be, for models that bring none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Example:
    """The example micro-batch of a model named hf:..."""

    rows: int
    length: int | None
    """Tokens a row; None for the model's longest, at most 1024."""
    training: bool = True
    """Whether it has labels, from which the model computes its own loss."""
