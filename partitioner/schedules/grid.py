"""Draws a schedule as a grid, device by step, with the faulty actions marked.

    step       3      4      5      6
    device 0   0F3    0B0    0F4    0B1
    device 1   1F2   [1B1]   1F3    1B2

A step is a position in the device's own list of computes. A send is drawn as the compute before
it, a receive as the compute after it, an action that is missing as [--] at the end of its row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stagecut.ir.schedule import Action, Compute, Send

COLUMNS, ROWS = 14, 16
"""The largest grid that is drawn; it holds the first marked action."""

Mark = tuple[int, int]
"""(device, position in its list of actions); the length of the list means its end."""


def draw(devices: Sequence[Sequence[Action]], marks: Iterable[Mark]) -> str:
    """The part of the grid around the first mark, as text of several lines."""
    cells = sorted((device, _step(devices[device], position)) for device, position in set(marks))
    rows = [
        [str(action) for action in actions if isinstance(action, Compute)] for actions in devices
    ]
    first_row, first_column = _corner(cells)
    width = max(map(len, rows), default=0) + 1
    columns = range(first_column, min(first_column + COLUMNS, width))
    lines = [["step", *(f" {column}" for column in columns)]]
    for device in range(first_row, min(first_row + ROWS, len(rows))):
        marked = {step for row, step in cells if row == device}
        lines.append([f"device {device}", *(_cell(rows[device], c, c in marked) for c in columns)])
    return _table(lines)


def _step(actions: Sequence[Action], position: int) -> int:
    """The position, among the computes, of the action at `position`."""
    before = sum(isinstance(action, Compute) for action in actions[:position])
    is_send = position < len(actions) and isinstance(actions[position], Send)
    return max(before - 1, 0) if is_send else before


def _corner(cells: list[tuple[int, int]]) -> tuple[int, int]:
    if not cells:
        return 0, 0
    row = max(cells[0][0] - ROWS // 2, 0) if cells[0][0] >= ROWS else 0
    return row, max(min(step for _, step in cells) - COLUMNS // 3, 0)


def _cell(row: list[str], step: int, marked: bool) -> str:
    text = row[step] if step < len(row) else "--" if marked else ""
    return f"[{text}]" if marked else f" {text}"


def _table(lines: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
