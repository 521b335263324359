"""Regions of code as blocks: lines with the regions they stand in become indented text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stagecut.ir.errors import UnsupportedError
from stagecut.ir.graph import Autocast, Context, GradMode, Mode

INDENT = "    "


@dataclass(frozen=True, slots=True)
class Line:
    """One line of code and the regions it stands in, outermost first."""

    text: str
    context: tuple[Context, ...] = ()


def blocks(lines: Sequence[Line], depth: int) -> Iterator[str]:
    """The text of some lines; a block is opened wherever the regions change.

    Args:
        lines: In order.
        depth: How far lines outside every region are indented.
    """
    current: tuple[Context, ...] = ()
    for line in lines:
        for level in range(_shared(current, line.context), len(line.context)):
            yield f"{INDENT * (depth + level)}{_opening(line.context[level])}:"
        current = line.context
        yield f"{INDENT * (depth + len(current))}{line.text}"


def _shared(current: tuple[Context, ...], wanted: tuple[Context, ...]) -> int:
    """How many of the open regions stay open; all that are wanted, where they are the same."""
    pairs = zip(current, wanted, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(current), len(wanted)))


def _opening(context: Context) -> str:
    match context:
        case GradMode(False):
            return "with torch.no_grad()"
        case GradMode(True):
            return "with torch.enable_grad()"
        case Autocast(dtype, enabled):
            return f"with torch.autocast(device.type, dtype=torch.{dtype}, enabled={enabled})"
        case Mode(training):
            return "if self.training" if training else "if not self.training"
    raise UnsupportedError(f"no region is written for {context}")
