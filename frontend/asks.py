"""Where a model's own code asks or sets what a trace settles for good.

    if not torch.compiler.is_compiling():     a trace takes the other way
    if torch.is_grad_enabled():               a trace for training takes this one, in eval too
    torch.manual_seed(1)                      a trace has no seeds

Libraries ask so to leave out checks, and are trusted with it; in the user's own files the plan
points at the line.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from torch import nn

from stagecut.frontend.sources import short_path

_ASKING = frozenset(
    {"is_compiling", "is_exporting", "is_dynamo_compiling", "is_tracing", "is_scripting"}
)
_RECORDING = frozenset({"is_grad_enabled"})
_SEEDING = frozenset({"manual_seed", "manual_seed_all", "set_rng_state"})


def asking_lines(modules: Sequence[nn.Module]) -> tuple[str, ...]:
    """`file:line` of every question whether a trace runs, in the files of the modules' classes."""
    return _places(modules, _ASKING, methods=False)


def recording_lines(modules: Sequence[nn.Module]) -> tuple[str, ...]:
    """`file:line` of every question whether gradients are recorded, in the classes' methods."""
    return _places(modules, _RECORDING, methods=True)


def seeding_lines(modules: Sequence[nn.Module]) -> tuple[str, ...]:
    """`file:line` of every call that seeds a generator, in the classes' methods."""
    return _places(modules, _SEEDING, methods=True)


def _places(
    modules: Sequence[nn.Module], names: frozenset[str], *, methods: bool
) -> tuple[str, ...]:
    classes = dict.fromkeys(c for module in modules for c in type(module).__mro__)
    files = dict.fromkeys(file for kind in classes for file in _own_file(kind))
    own = {kind.__name__ for kind in classes}
    return tuple(
        f"{short_path(file)}:{line}"
        for file in files
        for name, line, owner in _calls(file)
        if name in names and (owner in own or not methods)
    )


def _own_file(kind: type) -> Iterator[str]:
    try:
        file = inspect.getsourcefile(kind)
    except TypeError:
        return
    if file and "site-packages" not in file and Path(file).exists():
        yield file


@lru_cache(maxsize=256)
def _calls(file: str) -> tuple[tuple[str, int, str], ...]:
    """Name and line of the calls of a file that matter, and the class whose method makes them."""
    tree = ast.parse(Path(file).read_text())
    owners = {
        call: kind.name
        for kind in ast.walk(tree) if isinstance(kind, ast.ClassDef)
        for method in kind.body if isinstance(method, ast.FunctionDef) and method.name != "__init__"
        for call in ast.walk(method)
    }  # fmt: skip
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    calls = sorted(found, key=lambda call: call.lineno)
    named = ((_name(call.func), call.lineno, owners.get(call, "")) for call in calls)
    return tuple(call for call in named if call[0] in _ASKING | _RECORDING | _SEEDING)


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
