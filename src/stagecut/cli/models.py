"""Finds the model that a MODEL argument names, and an example micro-batch for it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagecut.cli.example import Example
from stagecut.cli.files import kind_of
from stagecut.cli.users import told
from stagecut.ir.errors import ArgumentError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model with an example micro-batch."""

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None


def load_model(spec: str, example: Example, *, weights: bool) -> Loaded:
    """The model that `spec` names: `module:function`, `hf:NAME` or `hf:FOLDER`.

    Without `weights` a named model stays on the meta device, which costs no memory; a function's
    own model is taken as it comes.

    Raises:
        ArgumentError: the name is of neither form, nothing is found under it, or what is found
            raises.
    """
    kind, colon, name = spec.partition(":")
    if not (colon and kind and name) or kind.endswith(".py"):
        seems, taker = kind_of(kind)
        found = f". It is {seems}, for {taker}" if seems else ""
        raise ArgumentError(
            f"{spec!r} names no model: write module:function (as my_models:build) or hf:gpt2{found}"
        )
    if kind == "hf":
        from stagecut.cli.hf import load_named

        with told(spec):
            return Loaded(*load_named(name, example, weights=weights))
    if example.asked:
        raise ArgumentError(
            f"{' and '.join(example.asked)} is for hf: models alone; {spec} brings its own "
            "example: leave it out, or return other args from the function"
        )
    function = _find(spec, kind, name)
    with told(spec):
        made = function()
    return _loaded(spec, made)


def _find(spec: str, module_name: str, name: str) -> Callable[[], Any]:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with told(f"importing {module_name}"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            raise ArgumentError(
                f"{spec}: there is no module {error.name!r}, here ({here}) or installed; "
                "run the command where the module can be imported"
            ) from error
    function = getattr(module, name, None)
    if not callable(function):
        callables = sorted(k for k, v in vars(module).items() if callable(v) and k[0] != "_")
        raise ArgumentError(
            f"{spec}: {module.__file__ or module_name} has no function {name!r}; "
            f"it has {', '.join(callables) or 'none'}"
        )
    found: Callable[[], Any] = function
    return found


def _loaded(spec: str, returned: Any) -> Loaded:
    from torch import nn

    parts = returned if isinstance(returned, tuple) else (returned,)
    fits = (
        1 <= len(parts) <= 3
        and isinstance(parts[0], nn.Module)
        and (len(parts) < 2 or isinstance(parts[1], tuple))
        and (len(parts) < 3 or isinstance(parts[2], Mapping))
    )
    if not fits:
        types = ", ".join(type(part).__name__ for part in parts)
        raise ArgumentError(
            f"{spec} returned ({types}); it has to return a torch.nn.Module, (model, args) or "
            "(model, args, kwargs), with args a tuple and kwargs a dict"
        )
    return Loaded(*parts)
