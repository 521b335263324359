"""Modules that run as they are, under every schedule: tied, shared, and recomputed around."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import stagecut
from tests.cases.models import WIDTH, linears
from tests.cases.odd import all_squares
from tests.support.equality import Case, assert_trained_alike, cut, train_pipeline, train_unsplit


class Gate(nn.Module):
    """Branches on data, and keeps statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.a(x))
        return x + (h * 2 if h.sum() > 0 else h)


class Head(nn.Module):
    """Holds a weight that is another module's too."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.bias = weight, nn.Parameter(torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = x @ self.weight.t() + self.bias
        return scores if scores.sum() > 0 else scores * 0.5


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.steps = nn.Embedding(16, WIDTH), linears(3)
        self.gates, self.head = nn.ModuleList(Gate() for _ in range(3)), Head(self.embed.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids).mean(1)
        for gate, step in zip(self.gates, self.steps, strict=True):
            x = torch.tanh(step(gate(x)))
        return self.head(x)


class Shared(nn.Module):
    """One gate, called between all layers: its statistics see every call in order."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.steps = Gate(), linears(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.steps[0](x)
        for step in self.steps[1:3]:
            x = torch.tanh(step(self.gate(x)))
        return self.steps[4](torch.tanh(self.steps[3](x)))


RUNS: dict[str, tuple[type[nn.Module], int, dict[str, Any]]] = {
    **{schedule: (Tied, 2, {"schedule": schedule})
       for schedule in ("gpipe", "interleaved", "zero_bubble", "zb_v")},
    "tied": (Tied, 3, {"method": "uniform"}),
    "shared": (Shared, 3, {"method": "uniform"}),
    "recompute": (Tied, 2, {"recompute": "full"}),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_trains_as_the_unsplit_model(name: str) -> None:
    kind, n_devices, options = RUNS[name]
    torch.manual_seed(0)
    inputs = torch.randint(0, 16, (8, 5)) if kind is Tied else torch.randn(8, WIDTH)
    case = Case(kind(), (inputs,), {}, all_squares)
    want = train_unsplit(copy.deepcopy(case), 4, 2)
    (x,) = cut((inputs,), 4)[0]
    plan = stagecut.partition(case.model, n_devices, (x,), n_microbatches=4, **options)
    assert any(op.target.startswith("module:") for op in plan.data.graph.ops)
    pipe = stagecut.pipeline(plan, case.model, loss_fn=all_squares, runtime="local")
    assert_trained_alike(train_pipeline(case, pipe, 2), want)
