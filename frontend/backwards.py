"""Backwards of the user's own, which a trace of the forward would lose without a word.

    class Round(torch.autograd.Function):        traced, it is aten.round alone,
        def backward(ctx, g): return g           whose gradient is zero

So are hooks on activations and modules' backward hooks; gradients that forward takes itself and
`torch.func` transforms leave traces that cannot be run. Modules with any of these run as they are.

The one file that reads `nn.Module._call_impl` and the names in `torch._functorch`, which torch does
not call public; `tests/frontend/test_backwards.py` notices when they change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import fx, nn
from torch.autograd.function import BackwardCFunction, Function
from torch.utils.checkpoint import CheckpointFunction

from stagecut.frontend.calls import Call
from stagecut.frontend.sources import scope_of, source_of, users_line
from stagecut.frontend.trees import flatten
from stagecut.ir.errors import TraceError

_APPLY = Function.apply.__func__.__code__  # type: ignore[attr-defined]
_CALL = nn.Module._call_impl.__code__
_TENSOR_HOOKS = frozenset(
    {torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook}
)
_GRADIENTS = frozenset({torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward})
_LEVELS = "torch._functorch."
"""The module of what `torch.func.vmap`, `grad` and their kin leave in a trace."""
_DEPTH = 40
_OF_OPERATORS = "GeneratedBackwardFor_"
"""Custom operators, which a trace keeps as they are, backward included."""
_REMEDY = "put it into a module of its own, which then runs as it is"


class Untraceable(TraceError):
    """A trace was made and cannot be kept, because of one module."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


def check_transforms(graph: fx.Graph) -> None:
    """Returns if a trace is free of `torch.func` transforms, which cannot be cut.

    Raises:
        Untraceable: one is left; names its module.
    """
    for node in graph.nodes:
        if str(getattr(node.target, "__module__", "")).startswith(_LEVELS):
            raise Untraceable(
                scope_of(node),
                f"{source_of(node) or 'the model'}: forward uses a torch.func transform (vmap, "
                f"grad), which cannot be cut; {_REMEDY}",
            )


def with_backward_hooks(model: nn.Module) -> list[str]:
    """Paths of the modules inside that have backward hooks."""
    return [
        name
        for name, module in model.named_modules()
        if name and (module._backward_hooks or module._backward_pre_hooks)
    ]


@contextmanager
def no_own_backwards(model: nn.Module) -> Iterator[None]:
    """Inside, a model that trains raises where its output has a backward of its own.

    Raises:
        TraceError: names the function or hook, and where it is used.
    """
    if not model.training:
        yield
        return
    hook = model.register_forward_hook(lambda _, __, output: _check_graph(output))
    try:
        yield
    finally:
        hook.remove()


def refuse_own_backward(call: Call) -> None:
    """Refuses a call, in a model that trains, that brings a backward of its own.

    Raises:
        TraceError: names the function or hook, and where it is used.
    """
    func, frame = call.function, call.frame
    if func in _TENSOR_HOOKS:
        raise TraceError(
            f"{users_line(frame)}: a trace would lose the hook on a gradient; {_REMEDY}"
        )
    if func in _GRADIENTS:
        raise TraceError(
            f"{users_line(frame)}: forward takes gradients itself, which a trace cannot keep; "
            f"{_REMEDY}"
        )
    asks = getattr(func, "__name__", "") == "__get__"  # for a shape, a dtype: most calls by far
    applied = None if asks else _applied(frame)
    if applied is not None:
        raise TraceError(
            f"{users_line(applied.f_back)}: a trace would lose the backward of "
            f"{applied.f_locals['cls'].__name__}; {_REMEDY}"
        )


def _applied(frame: FrameType | None) -> FrameType | None:
    """The call of an autograd.Function, on something that trains, that a frame is part of."""
    for _ in range(_DEPTH):
        if frame is None or frame.f_code is _CALL:
            return None
        if frame.f_code is _APPLY:
            if frame.f_locals["cls"] is CheckpointFunction:  # checkpoints.py's concern
                return None
            leaves = flatten((frame.f_locals["args"], frame.f_locals["kwargs"]))[0]
            trains = any(isinstance(x, torch.Tensor) and x.requires_grad for x in leaves)
            return frame if trains else None
        frame = frame.f_back
    return None


def _check_graph(output: Any) -> None:
    """Raises for functions that the watch could not see: those that call no op."""
    tensors = [leaf for leaf in flatten(output)[0] if isinstance(leaf, torch.Tensor)]
    pending = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(pending)
    while pending:
        node = pending.pop()
        name = type(node).__name__.removesuffix("Backward")
        if BackwardCFunction in type(node).__mro__ and not name.startswith(_OF_OPERATORS):
            raise TraceError(f"a trace would lose the backward of {name}; {_REMEDY}")
        following = {n for n, _ in node.next_functions if n is not None} - seen
        seen |= following
        pending += following
