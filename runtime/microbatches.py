"""A batch cut into micro-batches, each checked against what the model was traced for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stagecut.ir.errors import ArgumentError
from stagecut.ir.graph import Graph, Input
from stagecut.ir.types import SymbolicDim, TensorType


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch, as every stage sees it."""

    index: int
    rows: int
    inputs: Mapping[str, torch.Tensor]
    """The model's tensor inputs, by the names of their values."""
    symbols: Mapping[str, int]
    """The sizes that its inputs bind."""
    share: float
    """Its rows over those of the step: the weight of its loss."""
    target: Any = None
    """What the loss compares with, cut in the same way."""


def count_rows(graph: Graph, leaves: Sequence[Any]) -> int:
    """The rows of a batch.

    Raises:
        ArgumentError: the inputs that are cut have different numbers of rows, or none.
    """
    rows = {
        item.path: leaf.shape[0]
        for item, leaf in zip(graph.inputs, leaves, strict=True)
        if item.split_dim is not None and isinstance(leaf, torch.Tensor) and leaf.ndim
    }
    if len(set(rows.values())) > 1:
        raise ArgumentError(
            "the inputs have different numbers of rows: "
            + ", ".join(f"{path} {n}" for path, n in rows.items())
            + ". One that every micro-batch should get whole is declared when planning: "
            f'partition(..., split={{"{min(rows, key=rows.__getitem__)}": None}})'
        )
    total = next(iter(rows.values()), 1)
    if total == 0:
        raise ArgumentError("the batch is empty; give at least one row")
    return int(total)


def split(
    graph: Graph,
    leaves: Sequence[Any],
    target: Any,
    n_microbatches: int,
    all_rows: int | None = None,
) -> tuple[MicroBatch, ...]:
    """The micro-batches of a batch.

    Args:
        graph: What was traced; its inputs say what is cut.
        leaves: The batch, one leaf an input of the graph.
        target: Any nest of tensors; those with as many rows as the batch are cut.
        n_microbatches: How many to cut; not more than there are rows.
        all_rows: The rows of the step, where replicas have more of them.

    Raises:
        ArgumentError: what does not fit the trace, all of it at once.
    """
    _check_leaves(graph, leaves)
    rows = count_rows(graph, leaves)
    targets = _split_target(graph, target, rows, n_microbatches)
    columns = [
        (leaf,) * n_microbatches if item.split_dim is None else leaf.tensor_split(n_microbatches)
        for item, leaf in zip(graph.inputs, leaves, strict=True)
    ]
    sizes = [len(part) for part in torch.empty(rows, 0).tensor_split(n_microbatches)]
    made = []
    for index in range(n_microbatches):
        named = {
            item.value.name: column[index]
            for item, column in zip(graph.inputs, columns, strict=True)
            if item.value is not None
        }
        symbols = bind(graph, named)
        made.append(
            MicroBatch(
                index,
                sizes[index],
                named,
                symbols,
                sizes[index] / (all_rows or rows),
                targets[index],
            )
        )
    return tuple(made)


def bind(graph: Graph, tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The sizes of the graph's symbols, read off one micro-batch's inputs.

    Raises:
        ArgumentError: every size that the trace does not allow.
    """
    symbols: dict[str, int] = {}
    inputs = [(item, item.value) for item in graph.inputs if item.value is not None]
    for _, value in inputs:
        if isinstance(value.type, TensorType):
            for dim, size in zip(value.type.shape, tensors[value.name].shape, strict=True):
                if isinstance(dim, SymbolicDim) and dim.expression.isidentifier():
                    symbols.setdefault(dim.expression, int(size))
    faults = [
        f"{item.path} has shape {tuple(tensors[value.name].shape)}, the model was traced for "
        f"{value.type}"
        for item, value in inputs
        if isinstance(value.type, TensorType)
        and tuple(tensors[value.name].shape) != value.type.sizes(symbols)
    ]
    faults += [
        f"the size {r.symbol} is {symbols[r.symbol]}, the model was traced for {r.least} to "
        f"{r.most or 'any'}"
        for r in graph.ranges
        if r.symbol in symbols and not r.least <= symbols[r.symbol] <= (r.most or symbols[r.symbol])
    ]
    if faults:
        raise ArgumentError(
            "a micro-batch does not fit the plan; plan again with an example of this shape:\n"
            + "\n".join(f"  {fault}" for fault in faults)
            + f"\n  {_what_is_cut(graph)}"
        )
    return symbols


def _check_leaves(graph: Graph, leaves: Sequence[Any]) -> None:
    pairs = zip(graph.inputs, leaves, strict=True)
    faults = [fault for item, leaf in pairs for fault in _leaf_faults(item, leaf)]
    if faults:
        raise ArgumentError(
            "the inputs differ from the example that was traced:\n"
            + "\n".join(f"  {fault}" for fault in faults)
        )


def _leaf_faults(item: Input, leaf: Any) -> Iterator[str]:
    if item.value is None:
        is_tensor = isinstance(leaf, torch.Tensor)
        if is_tensor or leaf != item.constant:
            shown = f"a tensor {tuple(leaf.shape)}" if is_tensor else repr(leaf)
            yield f"{item.path} is {shown}, traced as {item.constant!r}: plan again with this value"
        return
    kind = item.value.type
    if not isinstance(leaf, torch.Tensor):
        yield f"{item.path} is {leaf!r}, traced as a tensor {kind}"
    elif isinstance(kind, TensorType):
        if leaf.ndim != len(kind.shape):
            yield f"{item.path} has {leaf.ndim} dimensions, traced as {kind}"
        if leaf.is_meta:
            yield f"{item.path} is on the meta device and has no values"
        if str(leaf.dtype) != f"torch.{kind.dtype}":
            yield f"{item.path} is {leaf.dtype}, traced as {kind}"


def _what_is_cut(graph: Graph) -> str:
    cut = [item.path for item in graph.inputs if item.split_dim is not None]
    whole = f'split={{"{(cut or ["mask"])[-1]}": None}}'
    return (
        f"Micro-batches are cut from {', '.join(cut) or 'nothing'} along dimension 0; an input "
        f"that each should get whole is declared: partition(..., {whole})"
    )


def _split_target(graph: Graph, target: Any, rows: int, n: int) -> list[Any]:
    leaves, tree = pytree.tree_flatten(target)
    cut = [isinstance(leaf, torch.Tensor) and leaf.ndim > 0 for leaf in leaves]
    other = [leaf.shape[0] for leaf, is_cut in zip(leaves, cut, strict=True) if is_cut]
    if wrong := [n_rows for n_rows in other if n_rows != rows]:
        raise ArgumentError(
            f"the target has {wrong[0]} rows, the inputs have {rows}; what is no batch, such as "
            f"class weights, belongs into loss_fn itself. {_what_is_cut(graph)}"
        )
    columns = [
        leaf.tensor_split(n) if is_cut else (leaf,) * n
        for leaf, is_cut in zip(leaves, cut, strict=True)
    ]
    return [pytree.tree_unflatten([column[i] for column in columns], tree) for i in range(n)]


def merge_outputs(parts: Sequence[Sequence[Any]], shares: Sequence[float]) -> list[Any]:
    """One leaf a model output, from the leaves of every micro-batch.

    Tensors with a batch dimension are joined along it; floating scalars (a mean loss) are averaged
    by rows; anything else is the same in every micro-batch, and the first is taken.
    """
    return [_merge(list(column), shares) for column in zip(*parts, strict=True)]


def _merge(column: list[Any], shares: Sequence[float]) -> Any:
    first = column[0]
    if not isinstance(first, torch.Tensor):
        return first
    if first.ndim:
        return torch.cat(column)
    if first.is_floating_point() and len(column) > 1:
        return sum(part * share for part, share in zip(column, shares, strict=True))
    return first
