"""What passes/fake.py relies on in torch: these fail when torch changes it."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from stagecut.passes.fake import (
    fake_activation,
    fake_leaf,
    fake_tensors,
    storage_bytes,
    storage_key,
)
from tests.support.kernels import kernels_of


def test_views_share_storage_and_keep_strides() -> None:
    with fake_tensors():
        base = fake_leaf((4, 6), (6, 1), torch.float32, False)
        view = base.t()[:, 1:]
        assert view.stride() == (1, 6)
        assert storage_key(view) == storage_key(base)
        assert storage_bytes(view) == 4 * 6 * 4
        assert storage_key(view.contiguous()) != storage_key(base)


def test_leaf_and_activation_look_like_a_weight_and_a_result() -> None:
    with fake_tensors():
        leaf = fake_leaf((2,), (1,), torch.float32, True)
        made = fake_activation((2, 3), (1, 2), torch.bfloat16)
    assert leaf.is_leaf and leaf.requires_grad
    assert not made.is_leaf and made.requires_grad and not made._is_view()
    assert made.stride() == (1, 2) and made.dtype == torch.bfloat16
    assert made.device.type == "cpu"


def test_an_activation_may_be_written_in_place() -> None:
    with fake_tensors():
        made = fake_activation((2, 3), (3, 1), torch.float32)
        made.add_(1)  # a leaf, or a view of one, would refuse
        assert made.requires_grad


def test_nothing_is_allocated() -> None:
    with fake_tensors():
        huge = fake_activation((2**20, 2**20), (2**20, 1), torch.float32)
        assert (huge @ huge).shape == huge.shape  # 4 TiB each


def test_attention_takes_the_fused_cpu_kernel_as_real_tensors_do() -> None:
    shape = (2, 4, 8, 16)
    with fake_tensors():
        q = fake_activation(shape, (512, 128, 16, 1), torch.float32)
        fake = kernels_of(lambda: F.scaled_dot_product_attention(q, q, q))
    r = torch.randn(shape, requires_grad=True)
    assert kernels_of(lambda: F.scaled_dot_product_attention(r, r, r)) == fake
    assert any("flash_attention_for_cpu" in kernel for kernel in fake)


def test_saved_tensor_hooks_see_storages() -> None:
    seen: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(storage_key(tensor))
        return tensor

    with fake_tensors():
        x = fake_activation((4, 8), (8, 1), torch.float32)
        w = fake_leaf((3, 8), (8, 1), torch.float32, True)
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            F.linear(x, w)
        assert set(seen) == {storage_key(x), storage_key(w)}


def test_what_an_operator_cannot_do_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with fake_tensors():
        whole = torch.zeros(4, dtype=torch.int32)
        with pytest.raises(RuntimeError, match="not implemented"):
            torch.histc(whole, 4, 0, 3)
    assert not caplog.records
