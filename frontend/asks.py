"""Where a model's own code asks whether it is being traced, and may do something else then.

    if not torch.compiler.is_compiling():     a trace takes the other way, for good

Libraries ask so to leave out checks, and are trusted with it; in the user's own files the plan
points at the line.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from torch import nn

from stagecut.frontend.sources import short_path

_ASKING = frozenset(
    {"is_compiling", "is_exporting", "is_dynamo_compiling", "is_tracing", "is_scripting"}
)


def asking_lines(model: nn.Module) -> tuple[str, ...]:
    """`file:line` of every such question in the classes of the model's modules."""
    classes = dict.fromkeys(c for m in model.modules() for c in type(m).__mro__)
    files = dict.fromkeys(file for kind in classes for file in _own_file(kind))
    return tuple(f"{short_path(file)}:{line}" for file in files for line in _lines(file))


def _own_file(kind: type) -> Iterator[str]:
    try:
        file = inspect.getsourcefile(kind)
    except TypeError:
        return
    if file and "site-packages" not in file and Path(file).exists():
        yield file


@lru_cache(maxsize=256)
def _lines(file: str) -> tuple[int, ...]:
    calls = (
        node for node in ast.walk(ast.parse(Path(file).read_text())) if isinstance(node, ast.Call)
    )
    return tuple(call.lineno for call in calls if _name(call.func) in _ASKING)


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
