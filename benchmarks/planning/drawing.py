"""Lines on two logarithmic axes, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 150, 20, 45


@dataclass(frozen=True, slots=True)
class Line:
    """A named line through points."""

    name: str
    colour: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class _Axes:
    """From figures to places on the page, by whole decades."""

    x_first: int
    x_last: int
    y_first: int
    y_last: int

    @staticmethod
    def of(points: Sequence[tuple[float, float]]) -> _Axes:
        xs, ys = zip(*((math.log10(x), math.log10(y)) for x, y in points), strict=True)
        # A point just short of a decade is at it.
        return _Axes(
            math.floor(min(xs) + 0.02), math.ceil(max(xs) - 0.02),
            math.floor(min(ys)), math.ceil(max(ys)),
        )  # fmt: skip

    def x(self, value: float) -> float:
        share = (math.log10(value) - self.x_first) / (self.x_last - self.x_first)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (math.log10(value) - self.y_first) / (self.y_last - self.y_first)
        return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)


def draw(across: str, up: str, lines: Sequence[Line]) -> str:
    """The lines, and a dashed one that grows as fast as its abscissa."""
    every = [point for line in lines for point in line.points]
    axes = _Axes.of(every)
    parts = [*_grid(axes), *_labels(across, up), _linear(axes, every)]
    for index, line in enumerate(lines):
        parts += _line(axes, line, TOP + 16 + 18 * index)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>\n'
    )


def _grid(axes: _Axes) -> list[str]:
    parts = []
    for decade in range(axes.x_first, axes.x_last + 1):
        x = axes.x(10.0**decade)
        parts.append(_segment(x, TOP, x, HEIGHT - BOTTOM))
        parts.append(_text(x, HEIGHT - BOTTOM + 16, f"{10**decade:,}", "middle"))
    for decade in range(axes.y_first, axes.y_last + 1):
        y = axes.y(10.0**decade)
        parts.append(_segment(LEFT, y, WIDTH - RIGHT, y))
        parts.append(_text(LEFT - 6, y + 4, f"{10.0**decade:g}", "end"))
    return parts


def _labels(across: str, up: str) -> list[str]:
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'<text transform="rotate(-90 16 {middle})" x="16" y="{middle}" text-anchor="middle">'
    return [
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, across, "middle"),
        f"{turned}{up}</text>",
    ]


def _linear(axes: _Axes, points: Sequence[tuple[float, float]]) -> str:
    """Through the last point of the lowest line."""
    x, y = max(points, key=lambda point: (point[0], -point[1]))
    lowest, first = 10.0**axes.y_first, 10.0**axes.x_first
    start = max(first, lowest * x / y)
    ends = f'x1="{axes.x(start):.1f}" y1="{axes.y(y * start / x):.1f}"'
    last = f'x2="{axes.x(x):.1f}" y2="{axes.y(y):.1f}"'
    key = _text(WIDTH - RIGHT + 12, HEIGHT - BOTTOM, "dashed: linear", "start")
    return f'<line {ends} {last} stroke="#555" stroke-dasharray="5 4"/>\n{key}'


def _line(axes: _Axes, line: Line, key_y: float) -> list[str]:
    places = [(axes.x(x), axes.y(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{line.colour}"/>' for x, y in places]
    key_x = WIDTH - RIGHT + 12
    return [
        f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2"/>',
        *dots,
        f'<circle cx="{key_x}" cy="{key_y - 4}" r="4" fill="{line.colour}"/>',
        _text(key_x + 10, key_y, line.name, "start"),
    ]


def _segment(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'
