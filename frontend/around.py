"""Traces a model whole, or around those of its modules that cannot be traced."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from torch import nn

from stagecut.frontend.example import Example
from stagecut.frontend.exporting import Exported, export
from stagecut.frontend.opaque import Unfit, opaque_modules
from stagecut.ir.errors import TraceError

_ATTEMPTS = 12


@dataclass(frozen=True, slots=True)
class Around:
    """A trace, and what it went around."""

    exported: Exported
    opaque: tuple[str, ...]
    """Paths of the modules that are one op each."""
    reasons: tuple[str, ...]
    """Why, one a failure."""


def export_around(model: nn.Module, example: Example, opaque: tuple[str, ...] = ()) -> Around:
    """The model's trace; modules that cannot be traced become one op each.

    Args:
        model: In the mode it is traced in.
        example: What it is traced with.
        opaque: Paths of modules known to be untraceable.

    Raises:
        TraceError: the first failure, where no part of the model can be set aside for it.
    """
    reasons: list[str] = []
    first: TraceError | None = None
    for _ in range(_ATTEMPTS):
        try:
            with opaque_modules(model, example, opaque):
                found = export(model, example, lengths=not opaque)
            return Around(found, opaque, tuple(reasons))
        except Unfit as error:
            wider = _parent(error.path)
            reasons.append(str(error))
            opaque = _with(opaque, [wider]) if wider else ()
        except TraceError as error:
            first = first or error
            if isinstance(error.__cause__, Unfit):
                wider = _parent(error.__cause__.path)
                opaque = _with(opaque, [wider]) if wider else ()
            else:
                reasons.append("\n".join(str(error).splitlines()[:3]))
                opaque = _with(opaque, _alike(model, _culprit(model, error, opaque)))
        if not opaque:
            break
    raise first or TraceError("\n".join(reasons))


def _with(opaque: tuple[str, ...], paths: list[str]) -> tuple[str, ...]:
    """The paths joined, without those inside others; () where nothing is new."""
    joined = dict.fromkeys((*opaque, *paths))
    outer = [p for p in joined if not any(p.startswith(f"{q}.") for q in joined)]
    return () if tuple(outer) == opaque else tuple(outer)


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _alike(model: nn.Module, path: str) -> list[str]:
    """The module, and all others of its class: they run the same code."""
    if not path:
        return []
    kind = type(model.get_submodule(path))
    if kind.__module__.startswith("torch.nn.modules"):
        return [path]
    return [name for name, module in model.named_modules() if type(module) is kind and name]


def _culprit(model: nn.Module, error: BaseException, opaque: tuple[str, ...]) -> str:
    """The innermost module that was running when tracing failed; "" where it is the model."""
    paths = {id(module): name for name, module in model.named_modules()}
    running = ""
    cause: BaseException | None = error.__cause__ or error
    for frame in _frames(cause):
        name = paths.get(id(frame.f_locals.get("self")))
        if name and frame.f_code.co_name == "forward" and name not in opaque:
            running = name
    return running


def _frames(error: BaseException | None) -> Iterator[FrameType]:
    if error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            yield frame
