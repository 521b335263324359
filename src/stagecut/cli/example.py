"""How large an example micro-batch is to be, for models that bring none."""

from __future__ import annotations

from dataclasses import dataclass

ROWS = (4, None)
"""Rows and length where nobody says otherwise."""


@dataclass(frozen=True, slots=True)
class Example:
    """The example micro-batch of a model named hf:..."""

    rows: int
    length: int | None
    """Tokens a row; None for the model's longest, at most 1024."""
    training: bool = True
    """Whether it has labels, from which the model computes its own loss."""
    asked: tuple[str, ...] = ()
    """The options that the user gave for it, which other models have no use for."""


def example_of(
    rows: int | None, length: int | None, *, training: bool, usual: tuple[int, int | None] = ROWS
) -> Example:
    """The example that --rows and --length ask for; None for the `usual`."""
    given = {"--rows": rows, "--length": length}
    return Example(
        rows or usual[0],
        length or usual[1],
        training,
        tuple(option for option, value in given.items() if value is not None),
    )
