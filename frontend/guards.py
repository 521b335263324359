"""What a trace took for granted about sizes, and for which sizes it holds.

A Python test on a size (`if x.shape[1] % 2 == 0`) freezes one branch. torch.export notes the test
as a guard over the inputs' sizes and, unless it is a mere range, leaves it to its own runtime.

The one file that reads `ExportedProgram._guards_code` and torch's `ShapeEnv`, which torch does not
call public; `tests/frontend/test_guards.py` notices when they change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stagecut.frontend.sources import is_users, short_path
from stagecut.frontend.trees import flatten, unflatten

_UNEQUAL_ONE = re.compile(r"!= 1$")
_MOST_ROWS = 64
"""How far rows are tried; a test that holds up to here is taken to hold for all."""


@dataclass(frozen=True, slots=True)
class _Sized:
    """Stands for a tensor in a guard."""

    sizes: tuple[int, ...]

    def size(self) -> tuple[int, ...]:
        return self.sizes


@dataclass(frozen=True, slots=True)
class Guards:
    """The guards of one trace."""

    codes: tuple[str, ...]
    kwargs: Mapping[str, Any]
    """The example that was traced."""
    places: Mapping[str, str] = field(default_factory=dict)
    """The user's `file:line` of the guards that it is known of."""

    @staticmethod
    def of(program: torch.export.ExportedProgram, kwargs: Mapping[str, Any]) -> Guards:
        """Those that sizes of two and more can break."""
        codes = getattr(program, "_guards_code", None) or ()
        kept = tuple(code for code in codes if not _UNEQUAL_ONE.search(code))
        return Guards(kept, kwargs, _places(program, codes))

    def at(self, guard: str) -> str:
        """` at file:line` of a guard, where that is known."""
        return f" at {self.places[guard]}" if guard in self.places else ""

    def fixing(self, length: int) -> str:
        """` at file:line` of what fixes a length of the inputs, where that is known."""

        def resize(dimension: int, size: int) -> int:
            return size + 1 if dimension and size == length else size

        broken = self.broken(resize)
        return "" if broken is None else self.at(broken)

    def broken(self, resize: Callable[[int, int], int]) -> str | None:
        """The first guard that fails with other sizes; `resize` maps (dimension, size)."""
        leaves, tree = flatten(self.kwargs)
        inputs = unflatten([_resized(leaf, resize) for leaf in leaves], tree)
        return next((code for code in self.codes if not _holds(code, inputs)), None)

    def lengths_broken(self, limits: Mapping[int, tuple[int, int]]) -> str | None:
        """A guard that fails where sizes in dimensions after 0 are others.

        `limits` has for each such size the least and the most that it may be instead.
        """
        for new in _others(limits):

            def resize(dimension: int, size: int, new: Mapping[int, int] = new) -> int:
                return new.get(size, size) if dimension else size

            if (found := self.broken(resize)) is not None:
                return found
        return None

    def rows(self, traced: int) -> tuple[int, int | None, str | None]:
        """(least, most, guard): the rows around the traced ones for which all guards hold."""

        def broken(rows: int) -> str | None:
            def resize(dimension: int, size: int) -> int:
                return rows if dimension == 0 and size == traced else size

            return self.broken(resize)

        if broken(traced) is not None:
            return 1, None, None  # not a test that the sizes of the inputs decide
        above = next((r for r in range(traced, _MOST_ROWS + 1) if broken(r)), None)
        below = next((r for r in range(traced, 1, -1) if broken(r)), None)
        guard = broken(above or below) if above or below else None  # type: ignore[arg-type]
        return (below + 1 if below else 1), (above - 1 if above else None), guard


def _places(program: torch.export.ExportedProgram, codes: Sequence[str]) -> dict[str, str]:
    """Where the user's own code tests; torch's environment of symbols has the guards in order."""
    made = (node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder")
    modes = (fake.fake_mode for fake in made if hasattr(fake, "fake_mode"))
    environment = getattr(next(modes, None), "shape_env", None)
    places = [getattr(g.sloc, "framework_loc", None) for g in getattr(environment, "guards", ())]
    if len(places) != len(codes):
        return {}
    lines = [(getattr(at, "filename", "<"), getattr(at, "lineno", 0)) for at in places]
    return {
        code: f"{short_path(file)}:{line}"
        for code, (file, line) in zip(codes, lines, strict=True)
        if is_users(file)
    }


def readable(guard: str) -> str:
    """A guard as the user would write it: `x.shape[1] % 2 == 0`."""
    return re.sub(r"L\['(\w+)'\]", r"\1", guard).replace(".size()", ".shape")


def _resized(leaf: Any, resize: Callable[[int, int], int]) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return _Sized(tuple(resize(d, int(size)) for d, size in enumerate(leaf.shape)))


def _holds(code: str, inputs: Any) -> bool:
    names = {"L": inputs, "math": math, "max": max, "min": min}
    try:
        return bool(eval(code, {"__builtins__": {}}, names))
    except (NameError, TypeError, KeyError, AttributeError, ZeroDivisionError):
        return True


def _others(limits: Mapping[int, tuple[int, int]]) -> Iterator[dict[int, int]]:
    """Other sizes, equal ones changed alike: a little more, an odd number more, a little less."""
    for change in (1, 6, 11, -1, -2):
        new = {size: size + change for size in limits}
        yield {s: n if limits[s][0] <= n <= limits[s][1] else s for s, n in new.items()}
