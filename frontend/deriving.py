"""An example for a model that comes with none, where its first layer says what it takes.

nn.Linear(784, …) takes f32[2, 784]; nn.Embedding takes i64[2, 16]; nn.Conv2d(3, …) an image, whose
size is tried. A guess counts only if the model runs on it, on fake tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

ROWS, LENGTH = 2, 16
_SIDES = (32, 64, 224, 28, 16)

Guess = Callable[[Any], Iterator[Sequence[int]]]


def _vectors(size: int) -> Iterator[Sequence[int]]:
    yield ROWS, size
    yield ROWS, LENGTH, size


def _images(layer: Any) -> Iterator[Sequence[int]]:
    dimensions = len(layer.kernel_size)
    for side in _SIDES:
        yield ROWS, layer.in_channels, *(side,) * dimensions


def _tokens(_: Any) -> Iterator[Sequence[int]]:
    yield ROWS, LENGTH


_GUESSES: Mapping[type[nn.Module], Guess] = MappingProxyType(
    {
        nn.Linear: lambda layer: _vectors(layer.in_features),
        nn.LayerNorm: lambda layer: _vectors(layer.normalized_shape[-1]),
        nn.BatchNorm1d: lambda layer: _vectors(layer.num_features),
        nn.LSTM: lambda layer: iter([(ROWS, LENGTH, layer.input_size)]),
        nn.GRU: lambda layer: iter([(ROWS, LENGTH, layer.input_size)]),
        nn.Conv1d: _images,
        nn.Conv2d: _images,
        nn.Conv3d: _images,
        nn.Embedding: _tokens,
    }
)


def derive_example(model: nn.Module) -> dict[str, torch.Tensor] | None:
    """Keyword inputs of two rows, or None where the first layer does not tell.

    Only for models whose forward needs one input; the others' could not be told apart.
    """
    required = [
        p for p in inspect.signature(model.forward).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]  # fmt: skip
    first = next((m for m in model.modules() if any(True for _ in m.parameters(False))), None)
    if len(required) != 1 or first is None or type(first) not in _GUESSES:
        return None
    dtype = torch.long if isinstance(first, nn.Embedding) else next(first.parameters()).dtype
    for shape in _GUESSES[type(first)](first):
        example = {required[0].name: torch.zeros(shape, dtype=dtype)}
        if _runs(model, example):
            return example
    return None


def _runs(model: nn.Module, example: Mapping[str, torch.Tensor]) -> bool:
    device = next(model.parameters()).device
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            weights = {n: torch.empty_like(tensor) for n, tensor in state.items()}
            given = {n: torch.empty_like(t, device=device) for n, t in example.items()}
            functional_call(model, weights, (), given)
    except Exception:  # whatever a user's model raises at a wrong shape, the next guess may do
        return False
    return True
