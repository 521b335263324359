"""The optimizer's step: bytes moved, series of kernels, measured times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stagecut.ir.device import Device
from stagecut.ir.devices import device
from stagecut.ir.errors import ArgumentError
from stagecut.ir.graph import Weight
from stagecut.ir.types import TensorType
from stagecut.passes.optimizing import step_name, step_seconds

# One byte a second and no launches: seconds are bytes.
GPU = Device("gpu", "cuda", 1e9, (("float32", 1.0),), 1.0, 0.0, 1.0, 1.0, "made up")
CPU = replace(GPU, kind="cpu")
PASSES = {"sgd": 3, "momentum": 8, "adam": 19, "adamw": 21}
"""How often an update reads or writes a tensor of the weight's size: p += g reads two, writes one;
momentum scales and adds before; Adam blends m, scales v, adds g * g, takes the root, divides, adds
epsilon and adds m / d, 19 in all; AdamW scales the weight as well."""


def weight(*shape: int, dtype: str = "float32", name: str = "w") -> Weight:
    return Weight(name, TensorType(shape, dtype), "parameter", True)


@pytest.mark.parametrize("card", [CPU, GPU])
@pytest.mark.parametrize("name", PASSES)
def test_bytes_moved(name: str, card: Device) -> None:
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        found = step_seconds([weight(300, 70, dtype=dtype)], name, card)
        assert found == pytest.approx(PASSES[name] * 300 * 70 * size, rel=2e-3)


def test_float32_copies_are_updated_in_float32_and_copied_back() -> None:
    found = step_seconds([weight(300, 70, dtype="bfloat16")], "adamw_master", GPU)
    assert found == pytest.approx((21 * 4 + 2 + 4 + 4 + 2) * 300 * 70, rel=2e-3)
    plain = step_seconds([weight(300, 70)], "adamw", GPU)
    assert step_seconds([weight(300, 70)], "adamw_master", GPU) == plain


def test_a_gpu_starts_one_series_of_kernels_for_all_weights() -> None:
    slow = {card.kind: replace(card, launch_seconds=1e9) for card in (CPU, GPU)}
    one, three = [weight(8)], [weight(8), weight(8, 8), weight(4)]
    for kind, times in (("cuda", 1), ("cpu", 3)):
        alone, together = (step_seconds(w, "adamw", slow[kind]) for w in (one, three))
        assert round(together / alone) == times
    assert 8e9 < step_seconds(one, "adamw", slow["cuda"]) < 20e9


def test_timed_weights_take_what_was_timed() -> None:
    weights = [weight(100, name="a"), weight(100, name="b")]
    alone = step_seconds(weights[:1], "adamw", CPU)
    assert step_seconds(weights, "adamw", CPU, {"b": 5.0}) == pytest.approx(alone + 5.0)


def test_what_has_no_step_takes_no_time() -> None:
    frozen = replace(weight(100), trainable=False)
    assert step_seconds([frozen], "adamw", device("A100")) == 0.0
    assert step_seconds([weight(100)], "none", device("A100")) == 0.0


def test_eight_bits_move_less() -> None:
    eight, full = (step_seconds([weight(4096, 4096)], n, GPU) for n in ("adam8bit", "adam"))
    assert 3 * 4 * 4096**2 < eight < full / 4


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"'lion'.*adamw"):
        step_seconds([weight(8)], "lion", GPU)


def test_names_tell_what_differs() -> None:
    kinds = [
        TensorType(s, d) for s, d in (((8,), "float32"), ((8,), "bfloat16"), ((8, 1), "float32"))
    ]
    names = {step_name(kind, o) for kind in kinds for o in ("adamw", "adam")}
    assert len(names) == 6
    assert step_name(kinds[0], "AdamW") == step_name(kinds[0], "adamw") == "step:adamw#float32[8]"
