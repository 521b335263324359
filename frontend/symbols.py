"""Symbolic sizes out of torch's fake tensors.

The one file that reads `SymInt.node`, which torch does not call public;
`tests/frontend/test_symbols.py` notices when it changes.
"""

from __future__ import annotations

from typing import Any

import torch

from stagecut.ir.types import Dim, ScalarType, SymbolicDim, TensorType, Type

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def type_of(value: Any) -> Type:
    """The IR type of what a traced node carries: a fake tensor, or a (symbolic) number."""
    if isinstance(value, torch.Tensor):
        return TensorType(tuple(map(dim_of, value.shape)), dtype_name(value.dtype))
    if isinstance(value, SYMBOLIC):
        return ScalarType(_kind(value), str(value.node.expr), hint_of(value))
    return ScalarType(type(value).__name__, repr(value), value)


def dim_of(size: int | torch.SymInt) -> Dim:
    """One dimension of a fake tensor."""
    if isinstance(size, torch.SymInt):
        expression = str(size.node.expr)
        return int(expression) if expression.isdigit() else SymbolicDim(expression, hint_of(size))
    return int(size)


def hint_of(value: Any) -> Any:
    """A symbolic number's value in the example; 0 where it depends on data."""
    if not value.node.has_hint():
        return {"int": 0, "float": 0.0, "bool": False}[_kind(value)]
    return value.node.hint


def depends_on_data(value: Any) -> bool:
    """Whether a number is known only when the model runs (`x.item()`, `nonzero`)."""
    return isinstance(value, SYMBOLIC) and not value.node.has_hint()


def most_of(bounds: Any) -> int | None:
    """The largest size of a range constraint; None where there is no limit."""
    return int(bounds.upper) if bounds.upper.is_finite and bounds.upper < 2**62 else None


def fixed(value: Any) -> int | None:
    """A size that the trace found to be one number; None for anything else."""
    if isinstance(value, torch.SymInt):
        expression = str(value.node.expr)
        return int(expression) if expression.lstrip("-").isdigit() else None
    return value if type(value) is int else None


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def _kind(value: Any) -> str:
    kinds = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool"}
    return kinds[type(value)]
