"""Runs a model on its example, for what a trace cannot tell, and leaves it as it was."""

from __future__ import annotations

import contextlib
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


def can_run(model: nn.Module) -> bool:
    """Whether the model's weights have values."""
    return not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def run(
    model: nn.Module,
    example: Example,
    kwargs: Mapping[str, Any],
    forwards: Mapping[str, Callable[..., Any]],
    watch: contextlib.AbstractContextManager[Any] | None = None,
) -> Any:
    """One forward without gradients, on copies of inputs and buffers; all else stays.

    Args:
        model: In the mode it is to run in.
        example: For the words of an error.
        kwargs: The inputs.
        forwards: For some paths what runs instead of the module's forward.
        watch: Entered around the run.

    Raises:
        TraceError: the weights have no values.
        ExampleFails: the model raises.
    """
    if not can_run(model):
        raise TraceError(
            f"{type(model).__name__} has weights on the meta device, so it cannot be run to see "
            "what the parts do that cannot be traced; load its weights first"
        )
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    given = map_leaves(_own, dict(kwargs))
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
        untouched(model),
        replaced(model, forwards),
    ):
        try:
            with watch or contextlib.nullcontext():
                return functional_call(model, buffers, (), given)
        except TraceError:
            raise
        except Exception as error:  # whatever the user's own code raises
            raise fails_on_example(model, example, error) from error


@contextlib.contextmanager
def replaced(model: nn.Module, forwards: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Puts other functions in the place of some modules' forward, and takes them away again."""
    changed = []
    try:
        for path, forward in forwards.items():
            module = model.get_submodule(path)
            changed.append((module, vars(module).get("forward")))
            module.forward = forward
        yield
    finally:
        for module, before in changed:
            del module.forward
            if before is not None:
                module.forward = before


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
