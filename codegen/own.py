"""Modules of the user's own in an export folder: which classes to import, and their attributes.

    {"class": "my_models:Gate", "attributes": {"scale": 2}, "empty": ["bias"], "modules": {...}}

Written down as plain data and put together again without calling `__init__`, whose arguments
nobody knows; weights come from the stage's own file. What is no plain data, importable name or
simple object is refused by name: nothing is pickled.
"""

from __future__ import annotations

import enum
import pprint
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from stagecut.codegen.source import OPAQUE, PLACES
from stagecut.ir.errors import UnsupportedError

Description = dict[str, Any]

_OWN_TABLES = frozenset(vars(nn.Module()))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_PLAIN = (bool, int, float, str, type(None))
_DEPTH = 8
"""How deep attributes may be nested: what refers to itself ends here."""

_REBUILD = '''
def own(root: Scope, name: str, made: dict):
    """A module of the user's own, put together from its class and attributes; weights follow."""
    scope, leaf = place(root, name)
    scope.add_module(leaf, rebuilt(made))


def rebuilt(made: dict) -> nn.Module:
    """A module without weights; its __init__ is not called."""
    kind = imported(made["class"])
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    for name, attribute in made["attributes"].items():
        vars(module)[name] = value(attribute)
    for name in made["empty"]:
        module.register_parameter(name, None)
    for name, inner in made["modules"].items():
        module.add_module(name, rebuilt(inner))
    return module


def imported(name: str):
    """What `package.module:name` names."""
    module, _, path = name.partition(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def value(made):
    """An attribute from plain data: all but numbers, strings and lists say what they are."""
    if isinstance(made, list):
        return [value(item) for item in made]
    if not isinstance(made, dict):
        return made
    kind, data = next(iter(made.items()))
    if kind in ("tuple", "set"):
        return {"tuple": tuple, "set": set}[kind](value(item) for item in data)
    if kind == "dict":
        return {value(key): value(item) for key, item in data}
    if kind == "torch":
        return getattr(torch, data)
    if kind == "import":
        return imported(data)
    if kind == "enum":
        return imported(data[0])[data[1]]
    held = imported(data)
    found = held.__new__(held)
    vars(found).update({name: value(item) for name, item in made["attributes"].items()})
    return found
'''


def describe_modules(modules: Mapping[str, nn.Module]) -> dict[str, Description]:
    """What rebuilds each module, by its path.

    Raises:
        UnsupportedError: every attribute that cannot be written down.
    """
    faults: list[str] = []
    made = {path: _module(path, module, faults) for path, module in modules.items()}
    if faults:
        raise UnsupportedError(
            "modules that run as they are cannot be exported:\n"
            + "\n".join(f"  {fault}" for fault in faults[:20])
            + "\nKeep these in plain attributes (numbers, strings, containers, functions and "
            "classes that can be imported), or run with pipeline(plan, model)"
        )
    return made


def imported_classes(description: Description) -> Iterator[str]:
    """`module:Class` of a module and all inside it."""
    yield description["class"]
    for inner in description["modules"].values():
        yield from imported_classes(inner)


def _module(path: str, module: nn.Module, faults: list[str]) -> Description:
    kind = type(module)
    name = _name(kind)
    if name is None:
        faults.append(f"{path}: its class {kind.__module__}.{kind.__qualname__} has no import path")
    if any(getattr(module, table, None) for table in _HOOKS):
        faults.append(f"{path}: it has hooks")
    own = {n: v for n, v in vars(module).items() if n not in _OWN_TABLES and n != "training"}
    slots = {**module._parameters, **module._buffers}
    return {
        "class": name,
        "attributes": {n: _encoded(f"{path}.{n}", value, faults) for n, value in own.items()},
        "empty": [name for name, tensor in slots.items() if tensor is None],
        "modules": {
            name: _module(f"{path}.{name}", inner, faults)
            for name, inner in module.named_children()
        },
    }


def _encoded(place: str, value: Any, faults: list[str], depth: int = 0) -> Any:
    """Plain data as itself, all else as a dict of one key that says what it is."""
    inside = depth + 1
    if isinstance(value, enum.Enum):
        return {"enum": [_name(type(value)), value.name]}
    if type(value) in _PLAIN:
        return value
    if isinstance(value, torch.dtype):
        return {"torch": str(value).removeprefix("torch.")}
    if depth > _DEPTH:
        faults.append(f"{place}: it is nested too deep")
    elif type(value) in (list, tuple, set):
        items = [_encoded(place, item, faults, inside) for item in value]
        return items if type(value) is list else {type(value).__name__: items}
    elif type(value) is dict:
        pairs = value.items()
        return {"dict": [[_encoded(place, x, faults, inside) for x in pair] for pair in pairs]}
    elif _importable(value):
        return {"import": _name(value)}
    elif _simple(value):
        state = {n: _encoded(f"{place}.{n}", v, faults, inside) for n, v in vars(value).items()}
        return {"object": _name(type(value)), "attributes": state}
    else:
        faults.append(f"{place}: a {type(value).__name__} cannot be written down")
    return None


def _simple(value: Any) -> bool:
    """Whether an object is its attributes and nothing more."""
    kind = type(value)
    own_ways = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")
    plain = all(getattr(kind, name, None) is getattr(object, name, None) for name in own_ways)
    held = isinstance(value, nn.Module | torch.Tensor | dict | list | tuple)
    return _importable(kind) and hasattr(value, "__dict__") and plain and not held


def _importable(value: Any) -> bool:
    return _name(value) is not None


def _name(value: Any) -> str | None:
    """`module:name` under which importing finds this very object; None where nothing does."""
    module, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    name = getattr(value, "__name__", None)
    places = [(module, qualified), (module, name), ("torch", name), ("torch.nn.functional", name)]
    for where, path in places:
        found: Any = sys.modules.get(where or "")
        for part in str(path).split("."):
            found = getattr(found, part, None)
        if found is value and path and where != "__main__":
            return f"{where}:{path}"
    return None


def with_modules(source: str, modules: Mapping[str, Description]) -> str:
    """A stage's text that puts its own modules together, from one that leaves places for them."""
    for path, description in modules.items():
        classes = ", ".join(dict.fromkeys(imported_classes(description))).replace(":", ".")
        literal = pprint.pformat(description, width=80, sort_dicts=False)
        source = source.replace(
            f'        {OPAQUE}"{path}")\n',
            f"        # {path} runs as it is. Imports {classes}.\n"
            f'        own(self, "{path}", {textwrap.indent(literal, " " * 12).strip()})\n',
        )
    if PLACES not in source:
        return source
    first, rest = source.split("\nimport torch\n", 1)
    return f"{first}\nimport importlib\n\nimport torch\n{rest}".replace(PLACES, _REBUILD)
