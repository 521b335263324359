"""Where a GPU's kernels keep something else than the CPU's that we probe: one table.

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


_ON_CUDA: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"aten.dropout.default": _fused_dropout}
)


def substitute(target: str, device_kind: str) -> Callable[..., Any] | None:
    """What to probe instead of `target` for a device of this kind; None: the op itself."""
    return _ON_CUDA.get(target) if device_kind == "cuda" else None
