"""Arguments that a module gets while the model is traced and not when it runs.

Code around a module may look at its data where it can, and not in a trace: transformers makes an
attention mask for a trace that it leaves out of a run in which nothing is masked. The pipeline
calls the module as the trace does, so that is what it has to run on.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from stagecut.frontend.keeping import untouched
from stagecut.frontend.symbols import SYMBOLIC, hint_of
from stagecut.frontend.trees import Tree, flatten, unflatten
from stagecut.ir.errors import TraceError


class FailsInTrace(TraceError):
    """A module raises on what the trace gives it, so every step would."""


@dataclass(frozen=True, slots=True)
class OtherArguments:
    """A call whose arguments are others in the trace than in a run."""

    path: str
    """The module's."""
    leaves: tuple[Any, ...]
    """Of its (args, kwargs): tensors as meta tensors, and what is none as it is."""
    tree: Tree
    """Their containers."""
    difference: str
    """In words."""


def other_arguments(
    path: str,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    seen: Sequence[tuple[int, ...] | None],
) -> OtherArguments | None:
    """The call, where a tensor of the trace was none in a run or had other dimensions.

    `seen` has the shape of each leaf of (args, kwargs) in a run; None for what is no tensor.
    """
    leaves, tree = flatten((args, kwargs))
    made = tuple(_outline(leaf) for leaf in leaves)
    differences = [
        f"{_name(module, args, kwargs, leaf)} is {_text(_shape(own))}, and in a run of the "
        f"example {_text(shape)}"
        for leaf, own, shape in zip(leaves, made, seen, strict=False)
        if _rank(_shape(own)) != _rank(shape)
    ]
    if not differences and len(leaves) == len(seen):
        return None
    told = "; ".join(differences) or f"there are {len(leaves)}, and {len(seen)} in a run"
    return OtherArguments(path, made, tree, told)


def check_runs(model: nn.Module, call: OtherArguments) -> None:
    """Returns if the module takes the trace's arguments, as far as their shapes tell.

    Raises:
        FailsInTrace: names the module, the argument, and what the module raised.
    """
    module = model.get_submodule(call.path)
    args, kwargs = unflatten([_example(leaf) for leaf in call.leaves], call.tree)
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with (
        torch.set_grad_enabled(model.training),
        torch.random.fork_rng(devices=[]),
        untouched(model),
    ):
        try:
            functional_call(module, buffers, args, kwargs)
        except Exception as error:  # whatever the user's own code raises
            said = (str(error).strip() or "no message").splitlines()[0]
            raise FailsInTrace(
                f"{call.path} cannot be traced, and it cannot run as it is between traced code: it "
                "is given other arguments there than in the model, and fails on them.\n"
                f"  In the trace {call.difference}.\n"
                f"  {type(error).__name__}: {said}\n"
                "  Code before it takes another way while the model is traced, as transformers' "
                "masks do, which look at data only in a run. Make the module take these arguments, "
                "or make that code give it the same in both"
            ) from error


def _name(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], leaf: Any) -> str:
    """The parameter of `forward` that a leaf is given for."""
    try:
        given = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
    except TypeError:  # a decorator's own signature
        return "an argument"
    return next((name for name, value in given.items() if value is leaf), "an argument")


def _outline(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    sizes: list[Any] = list(leaf.shape)
    sizes = [hint_of(size) if isinstance(size, SYMBOLIC) else size for size in sizes]
    return torch.empty(sizes, dtype=leaf.dtype, device="meta")


def _example(leaf: Any) -> Any:
    """A mask that masks nothing, whether its elements are added or say what is kept."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return torch.full(leaf.shape, leaf.dtype == torch.bool, dtype=leaf.dtype)


def _shape(leaf: Any) -> tuple[int, ...] | None:
    return tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else None


def _rank(shape: tuple[int, ...] | None) -> int | None:
    return None if shape is None else len(shape)


def _text(shape: tuple[int, ...] | None) -> str:
    return "no tensor" if shape is None else f"a tensor {list(shape)}"
