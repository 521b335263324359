"""Optimizer state against what torch's optimizers really allocate."""

from __future__ import annotations

import pytest
import torch

from stagecut.ir.errors import ArgumentError
from stagecut.ir.graph import Weight
from stagecut.ir.types import TensorType
from stagecut.passes.states import OPTIMIZERS, step_workspace_bytes, weight_bytes

REAL = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adafactor": torch.optim.Adafactor,
}


def weight(shape: tuple[int, ...], dtype: str = "float32", trainable: bool = True) -> Weight:
    return Weight("w", TensorType(shape, dtype), "parameter", trainable)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("shape", [(7,), (5, 9), (3, 4, 2, 2), ()])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_equal_to_the_optimizer(name: str, shape: tuple[int, ...], dtype: str) -> None:
    parameter = torch.nn.Parameter(torch.randn(shape, dtype=getattr(torch, dtype)))
    optimizer = REAL[name]([parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = optimizer.state[parameter]
    real = sum(
        t.untyped_storage().nbytes()
        for key, t in state.items()
        if isinstance(t, torch.Tensor) and key != "step"
    )
    n_bytes = parameter.untyped_storage().nbytes()
    assert weight_bytes(weight(shape, dtype), name, True) == (n_bytes, n_bytes, real)


def test_eight_bit_moments() -> None:
    assert weight_bytes(weight((1024, 1024)), "adam8bit", True)[2] == 2 * (2**20 + 4 * 2**12)
    assert weight_bytes(weight((16,)), "adam8bit", True)[2] == 2 * 16 * 4


def test_float32_copies_of_sixteen_bit_weights() -> None:
    """ZeRO's count: 2 + 2 bytes of weight and gradient, 12 of Adam's copy and moments."""
    for dtype in ("bfloat16", "float16"):
        assert weight_bytes(weight((10, 10), dtype), "adamw_master", True) == (200, 200, 1200)
    assert weight_bytes(weight((10, 10), "bfloat16"), "sgd_master", True) == (200, 200, 400)
    plain = weight_bytes(weight((10, 10)), "adamw", True)
    assert weight_bytes(weight((10, 10)), "AdamW_master", True) == plain
    assert weight_bytes(weight((10, 10), "bfloat16"), "adamw_master", False) == (200, 0, 0)


def test_temporaries_of_a_step() -> None:
    pair = [weight((10, 10), "bfloat16"), weight((5, 10), "bfloat16")]
    assert step_workspace_bytes(pair, "adamw", "cuda") == 300
    assert step_workspace_bytes(pair, "adamw", "cpu") == 400
    assert step_workspace_bytes(pair, "adamw_master", "cuda") == 600 + 600
    assert step_workspace_bytes(pair, "sgd_master", "cuda") == 600
    assert step_workspace_bytes(pair, "sgd", "cuda") == 0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_frozen_weights_and_inference_hold_the_weight_alone(name: str) -> None:
    assert weight_bytes(weight((8, 8), trainable=False), name, True) == (256, 0, 0)
    assert weight_bytes(weight((8, 8)), name, False) == (256, 0, 0)


def test_an_unknown_optimizer_is_named_with_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match=r"'lion'.*sgd, momentum, adam"):
        weight_bytes(weight((8,)), "lion", True)
