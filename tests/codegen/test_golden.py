"""Generated stages, byte for byte; read them when they change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import stagecut
from stagecut.plan import Plan
from tests.conftest import Golden


class Mixer(nn.Module):
    """Tied, buffered, dropped out, in two modes and two precisions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("bias", torch.ones(8), persistent=False)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.embed(ids) + torch.arange(ids.shape[1], device=ids.device).unsqueeze(-1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for layer in self.layers:
                h = h + F.dropout(torch.relu(layer(h)), 0.1, self.training)
        h = self.norm(h.float().transpose(1, 2)).transpose(1, 2)
        if self.training:
            h = h + self.bias
        return self.head(h)


class Attention(nn.Module):
    """A transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(8), nn.Linear(8, 24)
        self.out, self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = self.mix(self.norm(x)).view(rows, length, 3, 2, 4).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, mask[:, None, None])
        x = x + self.out(h.transpose(1, 2).reshape(rows, length, 8))
        return x + self.down(F.gelu(self.up(x)))


def plan_of(name: str) -> Plan:
    if name == "mixer":
        return stagecut.partition(Mixer(), 2, (torch.zeros(2, 5, dtype=torch.long),), method="dp")
    x, mask = torch.zeros(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)
    return stagecut.partition(Attention(), 2, (x, mask), method="dp", pins={"up": 1, "out": 0})


@pytest.mark.parametrize("name", ["mixer", "attention"])
def test_stages_are_written_as_before(name: str, golden: Golden) -> None:
    for stage in plan_of(name).programs().stages:
        golden(f"{name}_{stage.index}.txt", stage.source)


def test_another_process_writes_the_same_bytes() -> None:
    root = Path(__file__).parents[2]
    code = (
        "from tests.codegen.test_golden import plan_of\n"
        "print(*(s.source for s in plan_of('mixer').programs().stages))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": f"{root}/src:{root}"}
    made = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout
    assert made.rstrip() == " ".join(s.source for s in plan_of("mixer").programs().stages).rstrip()
