"""Where the op itself cannot be probed, or a GPU's kernels keep something else than the CPU's.

Of a grouped matrix product every row meets one matrix; fake tensors refuse it in single precision.
On a GPU dropout is one fused kernel with a boolean mask; on the CPU it draws a mask of the data's
own dtype in several kernels. (ATen, `Dropout.cpp`: `is_fused_kernel_acceptable`.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch


def _fused_dropout(data: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or not 0 < p < 1:
        return torch.ops.aten.dropout.default(data, p, train)  # type: ignore[no-any-return]
    return torch.ops.aten.native_dropout.default(data, p, train)[0]  # type: ignore[no-any-return]


def _one_group(
    rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor | None = None
) -> torch.Tensor:
    return rows @ (matrices[0] if rows.ndim == 2 and matrices.ndim == 3 else matrices)


_ANYWHERE: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"aten._grouped_mm.default": _one_group}
)
_ON_CUDA: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"aten.dropout.default": _fused_dropout}
)


def substitute(target: str, device_kind: str) -> Callable[..., Any] | None:
    """What to probe instead of `target` for a device of this kind; None: the op itself."""
    return _ANYWHERE.get(target) or (_ON_CUDA.get(target) if device_kind == "cuda" else None)
