"""A tensor as an op finds it in the example."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stagecut.ir.types import TensorType, dtype_bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything about a tensor that an op's cost may depend on."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """In elements."""
    dtype: str
    requires_grad: bool
    weight: bool
    """Whether it is a weight, or computed from weights alone: its gradient is a weight's."""
    held: bool
    """Whether its storage is a weight's, which a stage holds anyway."""
    storage_bytes: int
    """Of the whole storage it lives in."""

    @property
    def elements(self) -> int:
        """Their number, repeated ones included."""
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Bytes of a contiguous copy."""
        return self.elements * dtype_bytes(self.dtype)


def contiguous(type_: TensorType, *, requires_grad: bool = False, weight: bool = False) -> Layout:
    """The layout of a tensor that fills a storage of its own in row-major order."""
    shape = type_.hint_shape
    stride = tuple(math.prod(max(1, n) for n in shape[i + 1 :]) for i in range(len(shape)))
    return Layout(shape, stride, type_.dtype, requires_grad, weight, weight, type_.hint_bytes)
