"""From an op's target to the callable it names, and from IR constants to torch's own."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from stagecut.ir.errors import GraphError, UnsupportedError
from stagecut.ir.graph import Arg, ByMode, Ref, StageDevice, TorchConstant, WeightRef

_PYTHON = {"operator": operator, "_operator": operator, "math": math, "builtins": builtins}
OPAQUE = "module:"
"""What the targets of modules that run as they are begin with."""


def opaque_path(target: str) -> str | None:
    """The module path of an opaque target such as `module:encoder.lstm`; None for any other."""
    return target.removeprefix(OPAQUE) if target.startswith(OPAQUE) else None


def function_of(target: str, opaque: Mapping[str, nn.Module]) -> Callable[..., Any]:
    """The callable that an op's target names.

    Raises:
        GraphError: an opaque module is not among `opaque`.
        UnsupportedError: the operator's library is not imported in this process.
    """
    path = opaque_path(target)
    if path is not None:
        if path not in opaque:
            raise GraphError(
                f"the graph calls the module {path!r}, which was not given; pass the model's "
                f"opaque modules (given: {', '.join(sorted(opaque)) or 'none'})"
            )
        return opaque[path]
    first, *rest = target.split(".")
    if first in _PYTHON:
        return _attribute(_PYTHON[first], rest, target)
    if first == "torch":
        return _attribute(torch, rest, target)
    return _attribute(torch.ops, [first, *rest], target)


def _attribute(root: Any, path: list[str], target: str) -> Callable[..., Any]:
    found = root
    for part in path:
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise UnsupportedError(
                f"no operator called {target!r} in torch {torch.__version__}; import the library "
                "that registers it before planning"
            ) from error
    result: Callable[..., Any] = found
    return result


def torch_value(
    arg: Arg,
    lookup: Callable[[Ref | WeightRef], Any],
    *,
    training: bool,
    device: torch.device,
) -> Any:
    """An IR argument as a Python value: references through `lookup`, constants as torch's own."""
    match arg:
        case Ref() | WeightRef():
            return lookup(arg)
        case tuple():
            items = (torch_value(a, lookup, training=training, device=device) for a in arg)
            return list(items)
        case TorchConstant(name):
            return getattr(torch, name)
        case StageDevice():
            return device
        case ByMode(train, evaluation):
            return train if training else evaluation
        case _:
            return arg
