"""Types of values: shapes whose dimensions may be symbolic, dtypes by their torch name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stagecut.ir.expression import evaluate

_SHORT = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "bool",
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip
_LONG = {short: long for long, short in _SHORT.items()}
_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "complex32": 4, "complex64": 8, "complex128": 16,
    "uint16": 2, "uint32": 4, "uint64": 8,
}  # fmt: skip


def short_dtype(dtype: str) -> str:
    """The IR text's name of a dtype: `f32` for `float32`; unknown ones stay as they are."""
    return _SHORT.get(dtype, dtype)


def long_dtype(short: str) -> str:
    """The inverse of `short_dtype`."""
    return _LONG.get(short, short)


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element; the 8-bit floats and everything else unnamed take one."""
    return _BYTES.get(dtype, 1)


def is_differentiable(dtype: str) -> bool:
    """Whether tensors of this dtype can carry gradients."""
    return dtype.startswith(("float", "bfloat", "complex"))


@dataclass(frozen=True, slots=True)
class SymbolicDim:
    """A dimension known by an expression over symbols, such as `4*s0`."""

    expression: str
    hint: int
    """Its size in the example."""

    def __str__(self) -> str:
        return f"{self.expression}={self.hint}"


Dim = int | SymbolicDim


def dim_hint(dim: Dim) -> int:
    """The size of a dimension in the example."""
    return dim.hint if isinstance(dim, SymbolicDim) else dim


def dim_size(dim: Dim, symbols: Mapping[str, int]) -> int:
    """The size of a dimension once its symbols are bound."""
    return int(evaluate(dim.expression, symbols)) if isinstance(dim, SymbolicDim) else dim


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of a tensor."""

    shape: tuple[Dim, ...]
    dtype: str
    """As torch names it, without `torch.`: `float32`."""

    def __str__(self) -> str:
        return f"{short_dtype(self.dtype)}[{', '.join(map(str, self.shape))}]"

    @property
    def hint_shape(self) -> tuple[int, ...]:
        """The shape in the example."""
        return tuple(map(dim_hint, self.shape))

    @property
    def hint_elements(self) -> int:
        """The number of elements in the example."""
        return math.prod(self.hint_shape)

    @property
    def hint_bytes(self) -> int:
        """Bytes of a contiguous tensor of this type in the example."""
        return self.hint_elements * dtype_bytes(self.dtype)

    def sizes(self, symbols: Mapping[str, int]) -> tuple[int, ...]:
        """The shape once its symbols are bound."""
        return tuple(dim_size(dim, symbols) for dim in self.shape)


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A Python number that the graph computes, nearly always a size."""

    kind: str
    """`int`, `float` or `bool`."""
    expression: str
    """Over the graph's symbols, such as `s0//2`."""
    hint: int | float | bool
    """Its value in the example."""

    def __str__(self) -> str:
        return f"{self.kind}({self.expression}={self.hint!r})"


Type = TensorType | ScalarType
