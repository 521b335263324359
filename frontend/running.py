"""Runs a model on its example, for what a trace cannot tell, and leaves it as it was."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from stagecut.frontend.example import Example
from stagecut.frontend.explaining import fails_on_example
from stagecut.frontend.keeping import untouched
from stagecut.frontend.trees import flatten, map_leaves, unflatten
from stagecut.ir.errors import TraceError

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def can_run(model: nn.Module) -> bool:
    """Whether the model's weights have values."""
    return not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def run(
    model: nn.Module,
    example: Example,
    kwargs: Mapping[str, Any],
    forwards: Mapping[str, Callable[..., Any]],
    watch: contextlib.AbstractContextManager[Any] | None = None,
    seed: int | None = None,
    again: Callable[[], Mapping[str, Any]] | None = None,
) -> Any:
    """One forward, on copies of inputs and buffers; all else stays.

    While training, autograd records it: the model may ask for gradients itself.

    Args:
        model: In the mode it is to run in.
        example: For the words of an error.
        kwargs: The inputs.
        forwards: For some paths what runs instead of the module's forward.
        watch: Entered around the run.
        seed: Of what the model draws; None leaves it to the generator as it is.
        again: Called after the run for inputs to run at once again, with what forward left on the
            model still there.

    Raises:
        TraceError: the weights have no values.
        ExampleFails: the model raises.
    """
    if not can_run(model):
        raise TraceError(
            f"{type(model).__name__} has weights on the meta device, so it cannot be run to see "
            "what the parts do that cannot be traced; load its weights first"
        )
    with (
        torch.set_grad_enabled(model.training),
        torch.random.fork_rng(devices=[]),
        untouched(model),
        replaced(model, forwards),
    ):
        if seed is not None:
            torch.manual_seed(seed)
        try:
            made = _forward(model, kwargs, watch)
            return made if again is None else _forward(model, again(), None)
        except TraceError:
            raise
        except Exception as error:  # whatever the user's own code raises
            raise fails_on_example(model, example, error) from error


def _forward(
    model: nn.Module,
    kwargs: Mapping[str, Any],
    watch: contextlib.AbstractContextManager[Any] | None,
) -> Any:
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    given = map_leaves(_own, dict(kwargs))
    with watch or contextlib.nullcontext():
        return functional_call(model, buffers, (), given)


@contextlib.contextmanager
def replaced(model: nn.Module, forwards: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Puts other functions in the place of some modules and their hooks, and takes them away."""
    modules = [(model.get_submodule(path), forward) for path, forward in forwards.items()]
    before = [(module, _own_call(module)) for module, _ in modules]
    try:
        for module, forward in modules:
            _set_call(module, {**{hooks: OrderedDict() for hooks in _HOOKS}, "forward": forward})
        yield
    finally:
        for module, own in before:
            _set_call(module, own)


def as_it_is(module: nn.Module) -> Callable[..., Any]:
    """What calling a module does now, hooks included, also once it is replaced."""
    own = _own_call(module)

    def call(*args: Any, **kwargs: Any) -> Any:
        now = _own_call(module)
        _set_call(module, own)
        try:
            return module(*args, **kwargs)
        finally:
            _set_call(module, now)

    return call


def _own_call(module: nn.Module) -> dict[str, Any]:
    return {name: vars(module)[name] for name in (*_HOOKS, "forward") if name in vars(module)}


def _set_call(module: nn.Module, own: Mapping[str, Any]) -> None:
    vars(module).pop("forward", None)
    vars(module).update(own)


def one_row_more(example: Example) -> dict[str, Any]:
    """The example's inputs with the first row once more at the end."""
    leaves, tree = flatten(example.kwargs)
    more = [
        torch.cat([leaf, leaf[:1]]) if own else leaf
        for leaf, own in zip(leaves, example.batched, strict=True)
    ]
    grown: dict[str, Any] = unflatten(more, tree)
    return grown


def negated(example: Example) -> dict[str, Any]:
    """The example's inputs with the sign of all that is no integer changed."""

    def changed(leaf: Any) -> Any:
        real = isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
        return -leaf if real else leaf

    made: dict[str, Any] = map_leaves(changed, example.kwargs)
    return made


def _own(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf
