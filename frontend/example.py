"""The example that a model is traced with: by keyword, with storage of its own, two rows at least.

torch.export merges inputs that are the same tensor, and freezes a batch of one into the graph.
Both are silent, so neither may reach it.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from stagecut.frontend.records import register_dataclasses
from stagecut.frontend.trees import flatten, leaf_paths, unflatten
from stagecut.ir.errors import ArgumentError

QUIET = frozenset({"use_cache"})
"""Inputs that are set here, not by the user."""


@dataclass(frozen=True, slots=True)
class Example:
    """Inputs ready to be traced."""

    args: tuple[Any, ...]
    """Only what cannot be given by keyword."""
    kwargs: dict[str, Any]
    parameters: tuple[str, ...]
    """The names of forward's positional parameters, in order."""
    rows: int
    """The size of the batch the user gave."""
    batched: tuple[bool, ...]
    """For each leaf of kwargs, whether its dimension 0 is the batch."""


def prepare(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    split: Mapping[str, int | None],
) -> Example:
    """The user's example as torch.export needs it.

    Args:
        model: Whose forward the example is for; its signature names the positional arguments.
        args: Positional inputs of one micro-batch.
        kwargs: Keyword inputs of one micro-batch.
        split: Leaf paths to the dimension along which they are cut, None for inputs that every
            micro-batch gets whole.

    Raises:
        ArgumentError: the arguments do not fit forward's signature, or there is no tensor.
    """
    _check_shapes_known(model)
    named = by_keyword(model, args, dict(kwargs))
    named |= _quiet_defaults(model, named)
    register_dataclasses(named)
    leaves, tree = flatten(named)
    paths = leaf_paths(named)
    _check_kinds(leaves, paths)
    unknown = sorted(set(split) - set(paths) - {path.split("[")[0] for path in paths})
    if unknown:
        raise ArgumentError(
            f"split names {', '.join(unknown)}, which the example does not have; it has "
            f"{', '.join(paths)}"
        )
    cut = [leaf for p, leaf in zip(paths, leaves, strict=True) if _declared(p, split) is not None]
    rows = _rows(cut or leaves)
    batched = [_is_batched(p, leaf, rows, split) for p, leaf in zip(paths, leaves, strict=True)]
    device = _device(model)
    prepared = [
        _prepare_leaf(leaf, rows if is_batched else 0, device)
        for leaf, is_batched in zip(leaves, batched, strict=True)
    ]
    parameters = tuple(positional_parameters(model))
    return Example((), unflatten(prepared, tree), parameters, rows, tuple(batched))


def by_keyword(model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Positional arguments under their parameters' names, joined with the keyword ones.

    Raises:
        ArgumentError: the arguments do not fit forward's signature.
    """
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        name = type(model).__name__
        raise ArgumentError(
            f"the example does not fit {name}.forward: {error}. Give one micro-batch of inputs: "
            f"partition(model, n, example_args=(...), example_kwargs={{...}}); the signature is "
            f"{name}.forward{inspect.signature(model.forward)}"
        ) from error
    names = positional_parameters(model)
    if len(args) > len(names):
        raise ArgumentError(
            f"{type(model).__name__}.forward takes its inputs as *args; name them "
            "(def forward(self, x, y)), so that a pipeline can tell them apart"
        )
    return {**dict(zip(names, args, strict=False)), **kwargs}


def positional_parameters(model: nn.Module) -> list[str]:
    """The names of forward's parameters that may be given by position."""
    parameter = inspect.Parameter
    kinds = (parameter.POSITIONAL_OR_KEYWORD,)
    signature = inspect.signature(model.forward)
    return [p.name for p in signature.parameters.values() if p.kind in kinds]


def _check_shapes_known(model: nn.Module) -> None:
    tensors = (*model.named_parameters(), *model.named_buffers())
    unknown = [name for name, tensor in tensors if is_lazy(tensor)]
    if unknown:
        raise ArgumentError(
            f"{', '.join(unknown[:3])}{', …' if len(unknown) > 3 else ''} of a lazy module have no "
            "shape yet: run model(*example_args, **example_kwargs) once before partition"
        )


def _check_kinds(leaves: Sequence[Any], paths: Sequence[str]) -> None:
    faults = [
        f"  {path} is {shown_value(leaf)}"
        for path, leaf in zip(paths, leaves, strict=True)
        if not isinstance(leaf, torch.Tensor | bool | int | float | str | None)
    ]
    if faults:
        raise ArgumentError(
            "inputs must be tensors, numbers, strings or None, in tuples, lists, dicts and "
            "dataclasses:\n" + "\n".join(faults) + "\n  An array becomes a tensor by "
            "torch.from_numpy; a class of your own is declared with torch.export.register_dataclass"
        )


def _quiet_defaults(model: nn.Module, given: Mapping[str, Any]) -> dict[str, Any]:
    """A key-value cache in the output is no tensor tree and of no use to training: leave it out."""
    cached = getattr(getattr(model, "config", None), "use_cache", False)
    takes = "use_cache" in inspect.signature(model.forward).parameters
    return {"use_cache": False} if cached and takes and "use_cache" not in given else {}


def _rows(leaves: Sequence[Any]) -> int:
    sizes = [leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim]
    if not sizes:
        raise ArgumentError(
            "the example holds no tensor with a batch dimension; give one micro-batch of inputs: "
            "partition(model, n, example_args=(x,))"
        )
    if max(sizes) == 0:
        raise ArgumentError("the example's batch is empty; give at least one row")
    # A single row may be one for all; of other lengths, tables and masks have theirs alone.
    counts = Counter(size for size in sizes if size > 1) or Counter(sizes)
    return counts.most_common(1)[0][0]


def _declared(path: str, split: Mapping[str, int | None]) -> int | None:
    """The dimension along which a leaf is to be cut, 0 where nothing was said; None for whole."""
    return split.get(path, split.get(path.split("[")[0], 0))


def _is_batched(path: str, leaf: Any, rows: int, split: Mapping[str, int | None]) -> bool:
    declared = _declared(path, split)
    if declared is None or not isinstance(leaf, torch.Tensor) or leaf.ndim == 0:
        return False
    if declared != 0:
        raise ArgumentError(
            f"split={{{path!r}: {declared}}}: micro-batches are cut along dimension 0; transpose "
            "the input, or give None to pass it whole"
        )
    return bool(leaf.shape[0] == rows)


def shown_value(value: Any) -> str:
    """A value in a few words, however large: `None`, `0.5`, `ndarray (40, 6)`."""
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__}{f' {tuple(shape)}' if shape is not None else ''}"


def _device(model: nn.Module) -> torch.device | None:
    tensor = next(iter([*model.parameters(), *model.buffers()]), None)
    return None if tensor is None else tensor.device


def _prepare_leaf(leaf: Any, rows: int, device: torch.device | None) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    own = leaf.detach().to(device or leaf.device, copy=True)
    return torch.cat([own, own]) if rows == 1 else own
