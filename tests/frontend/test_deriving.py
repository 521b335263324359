"""Examples for models that come with none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from stagecut.frontend.deriving import derive_example
from tests.codegen.running import assert_trains_alike

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...] | None]] = {
    "vectors": (lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), (2, 6)),
    "series": (lambda: nn.TransformerEncoderLayer(8, 2, batch_first=True), None),
    "recurrent": (lambda: nn.LSTM(5, 4, batch_first=True), (2, 16, 5)),
    "images": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1)), (2, 3, 32, 32)),
    "flattened": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(1568, 4)),
        (2, 1, 28, 28),
    ),
    "tokens": (lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)), (2, 16)),
    "two inputs": (lambda: nn.Bilinear(3, 4, 5), None),
    "no weights": (lambda: nn.Tanh(), None),
    "none fits": (lambda: nn.Sequential(nn.Linear(6, 4), nn.Linear(3, 2)), None),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_the_first_layer_says(name: str) -> None:
    build, shape = MODELS[name]
    model = build()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    found = derive_example(model)
    assert (None if found is None else tuple(next(iter(found.values())).shape)) == shape
    assert_close(dict(model.state_dict()), state, rtol=0, atol=0)


def test_weights_may_be_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(6, 4))
    found = derive_example(model)
    assert found is not None and found["input"].shape == (2, 6)


def test_partition_without_an_example() -> None:
    import stagecut

    plan = stagecut.partition(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2)), 2)
    assert any("assumed a micro-batch of input (2, 6)" in note for note in plan.data.notes)


def test_partition_with_the_models_own_inputs() -> None:
    import transformers as hf

    import stagecut

    config = hf.GPT2Config(vocab_size=32, n_layer=2, n_embd=8, n_head=2, use_cache=False,
                           bos_token_id=1, eos_token_id=2)  # fmt: skip
    plan = stagecut.partition(hf.GPT2LMHeadModel(config), 2)
    assert any("input_ids (3, 5)" in note for note in plan.data.notes)


def test_a_cache_among_the_outputs_is_left_out() -> None:
    import transformers as hf

    config = hf.GPT2Config(vocab_size=32, n_layer=2, n_embd=8, n_head=2, n_positions=8,
                           resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                           bos_token_id=1, eos_token_id=2)  # fmt: skip
    model, ids = hf.GPT2LMHeadModel(config), torch.randint(3, 32, (4, 6))
    assert config.use_cache
    inputs = {"input_ids": ids, "labels": ids}
    pipe = assert_trains_alike(model, inputs, 2, lambda out: out.loss)
    assert pipe.eval()(**inputs).past_key_values is None
    assert config.use_cache
