"""Where a model's own code decides by `training`, other than by what modes.py knows.

A second trace in eval mode costs as much as the first. Most models need none: their code reads
`training` only to hand it to dropout or batch norm. This reads the code and finds the others:

    F.dropout(x, self.p, self.training)                     known: the flag becomes a choice
    attend(q, k, v, dropout=self.p if self.training else 0.0)    known: a rate that eval sets to 0
    if self.gradient_checkpointing and self.training:       changes memory, not results
    if self.training: ...                                   found
    F.dropout(x, 0.1)                                       found: eval drops too
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from torch import nn

from stagecut.frontend.fixed_flags import fixed_flags

# Functions that take the flag as an argument and end in an op of modes.py.
_TAKERS = frozenset(
    {
        "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
        "feature_dropout", "batch_norm", "instance_norm", "rrelu", "multi_head_attention_forward",
    }
)  # fmt: skip
# Their classes are the layers that modes.py knows, and the machinery around every model.
_KNOWN_FILES = ("torch/nn/modules/", "transformers/modeling_utils.py", "transformers/utils/")


def mode_reads(model: nn.Module) -> tuple[str, ...]:
    """`file:line` of every place that decides by `training`; unreadable code counts as one."""
    classes = dict.fromkeys(c for m in model.modules() for c in type(m).__mro__ if _is_own(c))
    found = dict.fromkeys(place for kind in classes for place in _of_class(kind))
    return tuple(found)


def _is_own(kind: type) -> bool:
    return issubclass(kind, nn.Module) and kind is not nn.Module


def _of_class(kind: type) -> Iterator[str]:
    try:
        file = inspect.getsourcefile(kind) or ""
    except TypeError:
        file = ""
    if any(known in file for known in _KNOWN_FILES):
        return
    if not file or not Path(file).exists():
        yield f"{kind.__module__}.{kind.__qualname__}"
        return
    places = _places(file)
    for line in (*places.get(kind.__qualname__.split(".")[-1], ()), *places.get("", ())):
        yield f"{file}:{line}"


@lru_cache(maxsize=256)
def _places(file: str) -> Mapping[str, tuple[int, ...]]:
    """The deciding lines of each class of a file, by its name; of its functions under ""."""
    places: dict[str, tuple[int, ...]] = {}
    tree = ast.parse(Path(file).read_text())
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    inside = {id(n) for kind in classes for n in ast.walk(kind)}
    for kind in classes:
        places[kind.name] = (*_deciding(kind), *fixed_flags(kind, tree))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.Lambda)]
    plain = [f for f in functions if id(f) not in inside]
    places[""] = tuple(line for f in plain for line in (*_deciding(f), *fixed_flags(f, tree)))
    return MappingProxyType(places)


def _deciding(root: ast.AST) -> Iterator[int]:
    parents = {id(child): node for node in ast.walk(root) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(root):
        reads = isinstance(node, ast.Attribute) and node.attr == "training"
        if reads and isinstance(node.ctx, ast.Load) and not _harmless(node, parents):  # type: ignore[attr-defined]
            yield node.lineno  # type: ignore[attr-defined]


def _harmless(node: ast.AST, parents: Mapping[int, ast.AST]) -> bool:
    parent = parents.get(id(node))
    if isinstance(parent, ast.keyword):
        parent = parents.get(id(parent))
    if isinstance(parent, ast.Call):
        return parent.func is not node and _called(parent) in _TAKERS
    if isinstance(parent, ast.UnaryOp):
        return _harmless_rate(parent, parents.get(id(parent)))
    if isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And):
        return any("gradient_checkpointing" in ast.dump(value) for value in parent.values)
    return _harmless_rate(node, parent)


def _harmless_rate(test: ast.AST, choice: ast.AST | None) -> bool:
    """Whether a choice is between a rate and 0."""
    if not isinstance(choice, ast.IfExp) or choice.test is not test:
        return False
    off = choice.body if isinstance(test, ast.UnaryOp) else choice.orelse
    return isinstance(off, ast.Constant) and off.value in (0, 0.0)


def _called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
