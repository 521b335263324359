"""no_grad and autocast regions, whole and with a cut inside."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stagecut.frontend import trace
from stagecut.ir.graph import Autocast, GradMode
from tests.codegen.running import assert_trains_alike, sources

X = {"x": torch.randn(4, 6)}


class Teacher(nn.Module):
    """A long frozen-by-no_grad part beside a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.student = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = x
            for layer in self.teacher:
                target = torch.tanh(layer(target))
        for layer in self.student:
            x = torch.tanh(layer(x))
        return x - target


class Mixed(nn.Module):
    """One autocast region over the whole network, with a float32 island."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for layer in self.layers[:2]:
                x = torch.tanh(layer(x))
            with torch.autocast("cpu", enabled=False):
                x = self.layers[2](x.float())
            x = self.layers[3](x)
        return x.float()


class Reenabled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            fixed = torch.tanh(self.layers[0](x))
            with torch.enable_grad():
                learned = self.layers[1](fixed)
        return self.layers[3](torch.tanh(self.layers[2](learned)))


class Decorated(nn.Module):
    """A method under a decorator, and detach between parts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    @torch.no_grad()
    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.layers[1](x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.layers[0](x))
        h = h * self.scale(h) + self.layers[2](h.detach())
        return self.layers[3](h)


class Switched(nn.Module):
    """Gradients switched off and on by calls, without a block."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        gate = torch.sigmoid(self.layers[1](torch.tanh(self.layers[0](x))))
        torch.set_grad_enabled(before)
        return self.layers[3](torch.tanh(self.layers[2](x))) * gate


@pytest.mark.parametrize("n_stages", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", [Teacher, Mixed, Reenabled, Decorated, Switched])
def test_a_region_may_be_cut_anywhere(kind: type[nn.Module], n_stages: int) -> None:
    assert_trains_alike(kind(), X, n_stages, method="uniform")


def test_regions_are_on_the_ops() -> None:
    ops = trace(Mixed(), (), X).graph.ops
    linear = [op.context for op in ops if op.target == "aten.linear.default"]
    on, off = Autocast("bfloat16", True), Autocast("bfloat16", False)
    assert linear == [(on,), (on,), (on, off), (on,)]
    ops = trace(Reenabled(), (), X).graph.ops
    linear = [op.context for op in ops if op.target == "aten.linear.default"]
    assert linear == [(GradMode(False),), (), (), ()]


def test_every_stage_of_a_cut_region_opens_it_again() -> None:
    pipe = assert_trains_alike(Mixed(), X, 2, method="uniform")
    for stage in pipe.program.stages:
        assert (
            "with torch.autocast(device.type, dtype=torch.bfloat16, enabled=True):" in stage.source
        )
    assert "cpu" not in sources(pipe)
