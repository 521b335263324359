"""Predicted peak memory of every stage against the measured one, within 5%."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stagecut import partition
from stagecut.ir.plan import Plan
from stagecut.partitioner.schedules import in_flight, make_schedule
from stagecut.passes.held import Held
from stagecut.passes.liveness import stage_profile
from stagecut.passes.memory import stage_memory
from stagecut.passes.parts import parts_of
from tests.passes.models import Block, ConvNet, Recurrent
from tests.support.stage_memory import measured_peaks

ROWS, MICROBATCHES = 8, 4


class WithLoss(nn.Module):
    """Any model, and a loss that is its output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.model(x)
        return F.cross_entropy(out.flatten(0, -2), torch.zeros_like(out[..., 0]).long().flatten())


def _wide(width: int = 128, depth: int = 6) -> nn.Module:
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.GELU())]
    return WithLoss(nn.Sequential(*layers))


class Stacked(nn.Module):
    """Two LSTMs, so that both stages have weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTM(4, 6, batch_first=True), Recurrent(nn.LSTM)
        self.join = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.join(self.first(x)[0])))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in ((3, 8), (8, 16)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in ((16, 8), (16, 8)))
        self.head = nn.Conv2d(8, 21, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = F.silu(self.down[0](x))
        two = F.silu(self.down[1](one))
        back = F.silu(self.up[0](two))
        return self.head(self.up[1](torch.cat([back, one], 1))).movedim(1, -1)


def _hf(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    import transformers as hf

    small = {
        "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
        "num_hidden_layers": 3,
    }  # fmt: skip
    ids = torch.randint(0, 300, (ROWS, 32))
    text = {"input_ids": ids, "labels": ids.clone()}
    images = {"pixel_values": torch.randn(ROWS, 3, 32, 32), "labels": torch.zeros(ROWS).long()}
    match name:
        case "gpt2":
            config = hf.GPT2Config(
                n_layer=3, n_embd=64, n_head=4, vocab_size=300, n_positions=64, use_cache=False,
                bos_token_id=0, eos_token_id=0,
            )  # fmt: skip
            return hf.GPT2LMHeadModel(config), text
        case "llama":
            config = hf.LlamaConfig(**small, num_key_value_heads=2, vocab_size=300, use_cache=False)
            return hf.LlamaForCausalLM(config), text
        case "bert":
            return hf.BertForMaskedLM(hf.BertConfig(**small, vocab_size=300)), text
        case "vit":
            config = hf.ViTConfig(**small, image_size=32, patch_size=8, num_labels=10)
            return hf.ViTForImageClassification(config), images
        case _:
            config = hf.ResNetConfig(
                embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], layer_type="basic",
                num_labels=10,
            )  # fmt: skip
            return hf.ResNetForImageClassification(config), images


def _tokens() -> torch.Tensor:
    return torch.randint(0, 11, (ROWS, 9))


OWN: dict[str, Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]] = {
    "mlp": lambda: (_wide(), {"x": torch.randn(ROWS, 128)}),
    "conv": lambda: (WithLoss(ConvNet()), {"x": torch.randn(ROWS, 3, 16, 16)}),
    "unet": lambda: (WithLoss(UNet()), {"x": torch.randn(ROWS, 3, 16, 16)}),
    "block": lambda: (WithLoss(Block(fused=True, dropout=0.2)), {"x": _tokens()}),
    "lstm": lambda: (WithLoss(Stacked()), {"x": torch.randn(ROWS, 12, 4)}),
}
PINS = {"lstm": {"model.second": 1}}  # else the last stage would hold the loss alone
ZOO = [*OWN, "gpt2", "llama", "bert", "vit", "resnet"]


@pytest.mark.parametrize("name", ZOO)
def test_within_five_percent(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = OWN[name]() if name in OWN else _hf(name)
    model.train()
    rows = ROWS // MICROBATCHES
    example: dict[str, Any] = {key: value[:rows] for key, value in inputs.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # export warns of nn.LSTM's flat weights
        plan = partition(
            model, 2, example_kwargs=example, cluster="cpu", method="uniform",
            n_microbatches=MICROBATCHES, pins=PINS.get(name),
        ).data  # fmt: skip
    for schedule in ("gpipe", "1f1b"):
        measured = measured_peaks(plan, model, list(inputs.values()), MICROBATCHES, schedule)
        assert predicted_peaks(plan, schedule) == pytest.approx(measured, rel=0.05), schedule


def predicted_peaks(plan: Plan, schedule: str) -> list[float]:
    """What the stages of a plan would report under a schedule."""
    timetable = make_schedule(schedule, plan.n_stages, plan.n_stages, MICROBATCHES)
    found = []
    parts = parts_of(plan.graph, plan.stages_of_ops, plan.n_stages)
    for part, flying in zip(parts, in_flight(timetable), strict=True):
        memory = stage_memory(
            Held.of(part.weights, "adamw", True, "cpu"),
            stage_profile(part),
            flying, MICROBATCHES > flying, True, float("inf"),
        )  # fmt: skip
        found.append(memory.total)
    return found
