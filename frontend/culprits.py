"""Which module stands in a trace's way, and which others run the same code."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType

from torch import nn

_CONSTANT = re.compile(r"model attribute: ([\w.]+)\.lifted_tensor")
"""How torch.export names the module of a tensor that it could not follow."""


def alike(model: nn.Module, path: str) -> list[str]:
    """The module, and all others of its class: they run the same code."""
    if not path:
        return []
    kind = type(model.get_submodule(path))
    if kind.__module__.startswith("torch.nn.modules"):
        return [path]
    return [name for name, module in model.named_modules() if type(module) is kind and name]


def culprit_of(model: nn.Module, error: BaseException, opaque: tuple[str, ...]) -> str:
    """The innermost module that was running when tracing failed; "" where it is the model."""
    named = _CONSTANT.search(str(error.__cause__))
    if named:
        return named[1]
    paths = {id(module): name for name, module in model.named_modules()}
    running = ""
    cause: BaseException | None = error.__cause__ or error
    for frame in _frames(cause):
        name = paths.get(id(frame.f_locals.get("self")))
        if name and frame.f_code.co_name in ("forward", "_call_impl") and name not in opaque:
            running = name
    return running


def _frames(error: BaseException | None) -> Iterator[FrameType]:
    if error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            yield frame


def holds_blocks(model: nn.Module, path: str) -> bool:
    """Whether a module inside has most of the weights, in a list of blocks: not to be one op."""
    if not path:
        return False
    module = model.get_submodule(path)
    inside = sum(p.numel() for p in module.parameters())
    most = 3 * inside > 2 * sum(p.numel() for p in model.parameters())
    return most and any(map(_is_list_of_blocks, module.modules()))


def _is_list_of_blocks(module: nn.Module) -> bool:
    weighty = [m for m in module.children() if any(True for _ in m.parameters())]
    return isinstance(module, nn.ModuleList | nn.Sequential) and len(weighty) > 2


def outermost(paths: Sequence[str]) -> tuple[str, ...]:
    """Each path once, without those inside others."""
    joined = dict.fromkeys(paths)
    return tuple(p for p in joined if not any(p.startswith(f"{q}.") for q in joined))


def outside(model: nn.Module, paths: Sequence[str]) -> list[nn.Module]:
    """The model's modules without those at the paths and all inside them."""
    inside = {id(inner) for path in paths for inner in model.get_submodule(path).modules()}
    return [module for module in model.modules() if id(module) not in inside]


def parent(path: str) -> str:
    """The path of the module around one; "" for the model."""
    return path.rpartition(".")[0]
