"""Tensors with sizes and storages but no data: the one file that touches FakeTensorMode.

`FakeTensorMode` is private to torch. What we rely on, and `tests/passes/test_fake.py` checks:
a fake CPU tensor takes the CPU kernels' paths through autograd (meta tensors take attention's
mathematical path, which saves far more), keeps strides, shares storages between views exactly as
real tensors do, and allocates nothing. Fake CUDA tensors abort the process on a CPU-only build
as soon as they require grad, so every fake tensor here is a CPU one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Inside, every tensor that is made has no data.

    Real tensors met inside (attributes of an opaque module) are replaced by fake twins. What an
    operator cannot do is told by the exception alone, which torch would also log.
    """
    log = logging.getLogger(FakeTensorMode.__module__)
    log.addFilter(_nothing)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        log.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False


def fake_leaf(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, requires_grad: bool
) -> torch.Tensor:
    """A fake tensor as a weight is: a leaf of autograd, with a storage of its own."""
    leaf = torch.empty_strided(shape, stride, dtype=dtype)
    return leaf.requires_grad_(requires_grad)


def fake_activation(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """A fake tensor as another op's result is: it requires grad, is no leaf and no view."""
    handle = torch.empty((), requires_grad=True)
    result: torch.Tensor = _Enter.apply(handle, shape, stride, dtype)  # type: ignore[no-untyped-call]
    return result


class _Enter(torch.autograd.Function):
    """Makes a tensor that autograd takes for the result of an earlier op."""

    @staticmethod
    def forward(
        ctx: Any,
        handle: torch.Tensor,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
    ) -> torch.Tensor:
        return torch.empty_strided(shape, stride, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None, None]:
        return None, None, None, None


def storage_key(tensor: torch.Tensor) -> int:
    """Equal for two tensors exactly where they share storage, while both are alive."""
    return int(tensor.untyped_storage()._cdata)


def storage_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the tensor's whole storage."""
    return int(tensor.untyped_storage().nbytes())
