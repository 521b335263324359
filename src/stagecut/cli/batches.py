"""Random batches of the shapes that a plan was traced for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stagecut.cli.models import Loaded
from stagecut.frontend.example import by_keyword
from stagecut.frontend.trees import flatten, leaf_paths, load_tree, unflatten
from stagecut.ir.graph import Graph, Input
from stagecut.ir.types import TensorType

Bounds = Mapping[str, tuple[int, int]]
"""Least and greatest value of each integer input, by its path."""


def example_bounds(loaded: Loaded) -> Bounds:
    """The range of the integers in each leaf of the example."""
    named = by_keyword(loaded.model, loaded.args, dict(loaded.kwargs or {}))
    leaves, _ = flatten(named)
    return {
        path: (int(leaf.min()), int(leaf.max()))
        for path, leaf in zip(leaf_paths(named), leaves, strict=True)
        if isinstance(leaf, torch.Tensor) and not leaf.is_floating_point() and leaf.numel()
    }


def random_batch(graph: Graph, bounds: Bounds, n_microbatches: int, seed: int) -> dict[str, Any]:
    """Keyword arguments for a whole batch: `n_microbatches` times the rows of the example.

    Floats are normal. Integers stay within `bounds`, which keeps token ids in the vocabulary;
    those it does not name are 0 or 1.
    """
    generator = torch.Generator().manual_seed(seed)
    leaves = [
        _leaf(item, bounds.get(item.path, (0, 1)), n_microbatches, generator)
        for item in graph.inputs
    ]
    batch: dict[str, Any] = unflatten(leaves, load_tree(graph.input_tree))
    return batch


def _leaf(
    item: Input, bound: tuple[int, int], n_microbatches: int, generator: torch.Generator
) -> Any:
    if item.value is None or not isinstance(item.value.type, TensorType):
        return item.constant
    shape = list(item.value.type.hint_shape)
    if item.split_dim is not None:
        shape[item.split_dim] *= n_microbatches
    dtype: torch.dtype = getattr(torch, item.value.type.dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return torch.randint(bound[0], bound[1] + 1, shape, generator=generator).to(dtype)
