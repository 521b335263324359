"""What the user gives: a model, a number of devices, an example of one micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import torch
from torch import nn

from stagecut.fitting import Recomputation
from stagecut.frontend import derive_example
from stagecut.ir.errors import ArgumentError
from stagecut.partitioner import METHODS
from stagecut.passes import TiedWeights, split_name


def check_given(model: nn.Module, n_gpus: int, args: object) -> None:
    """Refuses what is no model, no number of devices, no inputs.

    Raises:
        ArgumentError: says what it is, and what to give.
    """
    if not isinstance(n_gpus, int) or isinstance(n_gpus, bool) or n_gpus < 1:
        raise ArgumentError(f"n_gpus is {n_gpus!r}; give the number of devices, 1 or more")
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"the model is of type {type(model).__name__}; give an nn.Module")
    if hasattr(model, "_orig_mod"):
        raise ArgumentError(
            "the model is compiled by torch.compile; give the model itself, model._orig_mod"
        )
    if not isinstance(args, torch.Tensor | Sequence):
        raise ArgumentError(
            f"example_args is of type {type(args).__name__}; give a tensor, or a tuple of inputs: "
            "an array becomes a tensor by torch.from_numpy"
        )


def check_choices(method: str, recompute: str, optimizer: str, tied: str) -> None:
    """Refuses names that nothing has, before the model is traced; all at once.

    Raises:
        ArgumentError: says what there is to choose from.
    """
    wrong = [
        f"{argument} is {given!r}; choose {', '.join(known[:-1])} or {known[-1]}"
        for argument, given, known in (
            ("method", method, METHODS),
            ("recompute", recompute, get_args(Recomputation)),
            ("tied", tied, get_args(TiedWeights)),
        )
        if given not in known
    ]
    try:
        split_name(optimizer)
    except ArgumentError as error:
        wrong.append(str(error))
    if wrong:
        raise ArgumentError("; ".join(wrong))


def check_pins(pins: object) -> None:
    """Refuses what does not map module paths to stages, before the model is traced; all at once.

    Raises:
        ArgumentError: says which entries, and what to give.
    """
    if not isinstance(pins, Mapping):
        raise ArgumentError(
            f"pins is of type {type(pins).__name__}; give a mapping of module paths to stages, as "
            '{"lm_head": 3}'
        )
    wrong = [
        f"{path!r}: {stage!r}"
        for path, stage in pins.items()
        if not isinstance(path, str) or type(stage) is not int
    ]
    if wrong:
        raise ArgumentError(
            f"pins maps module paths to the numbers of stages; these do not: {', '.join(wrong)}"
        )


def example_of(
    model: nn.Module, args: Sequence[Any] | torch.Tensor, kwargs: Mapping[str, Any] | None
) -> tuple[Sequence[Any], Mapping[str, Any], tuple[str, ...]]:
    """The user's example, or the model's own, or one derived; and a note on what was assumed.

    Raises:
        ArgumentError: there is none of them; says how to give one.
    """
    if isinstance(args, torch.Tensor):
        args = (args,)
    if args or kwargs:
        return args, kwargs or {}, ()
    own = getattr(model, "dummy_inputs", None)
    found = own if isinstance(own, Mapping) else derive_example(model)
    if found is not None:
        shown = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in found.items())
        return (), found, (f"no example was given; assumed a micro-batch of {shown}",)
    raise ArgumentError(
        f"partition({type(model).__name__}, …) needs an example of one micro-batch, for shapes and "
        "dtypes: partition(model, n, example_args=(x,)), or example_kwargs={...}; tensors on the "
        "meta device will do"
    )
