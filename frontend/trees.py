"""Nested containers of inputs and outputs as flat lists of leaves and back.

The one file that touches `torch.utils._pytree`, which torch.export itself uses for the same
purpose but does not call public; `tests/frontend/test_trees.py` notices when it changes.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stagecut.ir.errors import ArgumentError, TraceError

Tree = pytree.TreeSpec
_RETURNED = "torch.return_types"
"""The module of what `torch.max(x, dim=1)` and its like return."""


def flatten(value: Any) -> tuple[list[Any], Tree]:
    """The leaves of nested containers, left to right, and the tree they came from."""
    return pytree.tree_flatten(value)


def unflatten(leaves: Sequence[Any], tree: Tree) -> Any:
    """The containers of `tree` around `leaves`."""
    return pytree.tree_unflatten(list(leaves), tree)


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """The same containers with `function` applied to every leaf."""
    return pytree.tree_map(function, value)


def leaf_paths(value: Any) -> list[str]:
    """How the user writes each leaf of a keyword dict: `batch['x']`, `scales[0]`."""
    return [_path(path) for path, _ in pytree.tree_leaves_with_path(value)]


def _path(path: tuple[Any, ...]) -> str:
    first, *rest = path
    head = str(first.key) if isinstance(first, pytree.MappingKey) else pytree.keystr((first,))
    return head + pytree.keystr(tuple(rest))


def dump_tree(tree: Tree) -> str:
    """The tree as JSON text: null for a leaf, else a container and its children.

    Raises:
        TraceError: a container's class is not registered under a name.
    """
    return json.dumps(_dumped(tree), separators=(",", ":"))


def load_tree(text: str) -> Tree:
    """The tree that `dump_tree` wrote.

    A named tuple or a dataclass gets its own class where that is imported already, else one of the
    same name and fields: reading a tree imports nothing.
    """
    return _loaded(json.loads(text))


def _dumped(tree: Tree) -> Any:
    if tree.is_leaf():
        return None
    children = [_dumped(child) for child in tree.children()]
    if tree.type is namedtuple:
        made = tree.context
        return {"tuple": [made.__module__, made.__qualname__, *made._fields], "of": children}
    if tree.type is not None and tree.type.__module__ == _RETURNED:
        return {"returned": tree.type.__name__, "of": children}
    # Torch's own form of this container alone, leaves in place of its children.
    alone = pytree.TreeSpec(tree.type, tree.context, [pytree.treespec_leaf()] * len(children))
    try:
        return {"node": json.loads(pytree.treespec_dumps(alone)), "of": children}
    except NotImplementedError as error:
        if dataclasses.is_dataclass(tree.type):
            kind: Any = tree.type
            return {
                "dataclass": [kind.__module__, kind.__qualname__, *tree.context],
                "of": children,
            }
        raise TraceError(
            f"the model's inputs or outputs hold a container that cannot be written down: {error}; "
            "register it with torch.export.register_dataclass(cls, serialized_type_name=...)"
        ) from error


def _loaded(data: Any) -> Tree:
    if data is None:
        return pytree.treespec_leaf()
    children = [_loaded(child) for child in data["of"]]
    if "tuple" in data:
        return pytree.TreeSpec(namedtuple, _named_tuple(*data["tuple"]), children)
    if "returned" in data:
        return pytree.TreeSpec(getattr(torch.return_types, data["returned"]), None, children)
    if "dataclass" in data:
        module, name, filled, empty = data["dataclass"]
        return pytree.TreeSpec(_dataclass(module, name, filled + empty), [filled, empty], children)
    alone = pytree.treespec_loads(json.dumps(data["node"]))
    return pytree.TreeSpec(alone.type, alone.context, children)


def _named_tuple(module: str, name: str, *fields: str) -> type:
    found = _imported(module, name)
    if isinstance(found, type) and getattr(found, "_fields", None) == fields:
        return found
    return namedtuple(name.rpartition(".")[2], fields)


def _dataclass(module: str, name: str, fields: list[str]) -> type:
    """The class itself where it is imported, else one of the same name and fields; registered."""
    found = _imported(module, name)
    same = isinstance(found, type) and dataclasses.is_dataclass(found)
    if not same or {field.name for field in dataclasses.fields(found) if field.init} != set(fields):
        found = dataclasses.make_dataclass(name.rpartition(".")[2], fields)
    if found not in pytree.SUPPORTED_NODES:
        pytree.register_dataclass(found)
    return found  # type: ignore[no-any-return]


def _imported(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def keyword_leaves(tree: Tree, paths: Sequence[str], kwargs: Mapping[str, Any]) -> list[Any]:
    """The leaves of `kwargs` in the order of `tree`, whatever order the user gave them in.

    Raises:
        ArgumentError: the containers differ from those of the example.
    """
    names = _keywords(tree)
    leaves, given = flatten({name: kwargs[name] for name in names})
    if given != tree:
        here, there = set(leaf_paths({name: kwargs[name] for name in names})), set(paths)
        missing, extra = sorted(there - here), sorted(here - there)
        raise ArgumentError(
            "the inputs are nested differently from the example that was traced"
            + (f"; missing: {', '.join(missing)}" if missing else "")
            + (f"; not in the example: {', '.join(extra)}" if extra else "")
        )
    return leaves


def keywords(text: str) -> list[str]:
    """The argument names at the top of a dumped input tree."""
    return _keywords(load_tree(text))


def _keywords(tree: Tree) -> list[str]:
    return [str(key) for key in tree.context]
