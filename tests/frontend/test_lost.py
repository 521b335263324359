"""What a trace shows nothing of is refused in the model's own forward and kept in its modules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from stagecut.frontend import trace
from stagecut.ir.errors import TraceError
from tests.codegen.running import assert_trains_alike, mean_square

X = {"x": torch.randn(4, 6)}


class Infers(nn.Module):
    """A gate in inference mode."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            gate = torch.sigmoid(self.a(x))
        return self.b(x) + gate


class Assigns(nn.Module):
    """A running mean that is assigned to `.data`."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.a(x))
        self.mean.data = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return h + self.mean


class Freezes(nn.Module):
    """Switches a weight off, in one of the ways there are."""

    ways: ClassVar[dict[str, Callable[[nn.Module], Any]]] = {
        "freeze": lambda a: a.weight.requires_grad_(False),
        "freeze by name": lambda a: a.weight.requires_grad_(requires_grad=False),
        "freeze by assignment": lambda a: setattr(a.weight, "requires_grad", False),
        "freeze a module": lambda a: a.requires_grad_(False),
        "freeze in training": lambda a: a.requires_grad_(not a.training),
    }

    def __init__(self, way: str) -> None:
        super().__init__()
        self.a, self.b, self.way = nn.Linear(6, 6), nn.Linear(6, 6), way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.ways[self.way](self.a)
        return self.b(torch.tanh(self.a(x)))


class Thaws(Freezes):
    """Switches one on that was off."""

    def __init__(self) -> None:
        super().__init__("")
        self.a.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.a.weight.requires_grad_()
        return self.b(torch.tanh(self.a(x)))


class Pauses(Freezes):
    """For one use alone, as the generator's half of a GAN does with its discriminator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.a.requires_grad_(False)
        h = torch.tanh(self.a(x))
        self.a.requires_grad_(True)
        return self.b(h)


LOST: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "inference": (Infers, "torch.inference_mode"),
    "data": (Assigns, "the assignment to .data"),
    **{
        way: (partial(Freezes, way), "that a weight's requires_grad becomes False")
        for way in Freezes.ways
    },
    "thaw": (Thaws, "that a weight's requires_grad becomes True"),
    "pause": (partial(Pauses, ""), "that a weight's requires_grad becomes False"),
}


@pytest.mark.parametrize("name", LOST)
def test_in_the_models_own_forward_it_is_refused_with_its_line(name: str) -> None:
    kind, what = LOST[name]
    model = kind()
    trained = [p.requires_grad for p in model.parameters()]
    with pytest.raises(TraceError, match=rf"test_lost.py:\d+: a trace would lose {what}.*own, wh"):
        trace(model, (), X)
    assert [p.requires_grad for p in model.parameters()] == trained


@pytest.mark.parametrize("frontend", ["export", "recorded"])
@pytest.mark.parametrize("name", ["data", "freeze"])
def test_frontends_that_trace_it_all_the_same_name_those_that_do_not(
    frontend: str, name: str
) -> None:
    model = nn.Sequential(nn.Linear(6, 6), LOST[name][0](), nn.Linear(6, 6))
    advice = rf'This is frontend="{frontend}"; with frontend="auto" or "symbolic" 1 runs as it is'
    with pytest.raises(TraceError, match=advice):
        trace(model, (X["x"],), frontend=frontend)
    assert trace(model, (X["x"],), frontend="symbolic").means.opaque == ("1",)


@pytest.mark.parametrize("n_stages", [1, 2])
@pytest.mark.parametrize("name", LOST)
def test_in_a_module_it_is_kept(name: str, n_stages: int) -> None:
    model = nn.Sequential(nn.Linear(6, 6), LOST[name][0](), nn.Linear(6, 6))
    assert_trains_alike(model, {"input": X["x"]}, n_stages)


@pytest.mark.parametrize("way", Freezes.ways)
def test_planning_leaves_on_what_a_module_switches_off(way: str) -> None:
    model = nn.Sequential(nn.Linear(6, 6), Freezes(way))
    trace(model, (X["x"],))
    assert all(p.requires_grad for p in model.parameters())


def test_a_stage_that_nothing_trains_in_any_more_sends_no_gradient() -> None:
    model = nn.Sequential(Freezes("freeze a module"), nn.Linear(6, 6))
    model[0].b.requires_grad_(False)
    pipe = assert_trains_alike(model, {"input": X["x"]}, 2)
    assert_close(pipe.train_step(X["x"]), mean_square(model(X["x"])).detach())


@pytest.mark.parametrize("name", sorted(LOST.keys() - {"data"}))
def test_without_gradients_nothing_of_it_changes_anything(name: str) -> None:
    traced = trace(LOST[name][0](), (), X, training=False)
    assert not any(":" in op.target for op in traced.graph.ops)


@pytest.mark.parametrize("way", Freezes.ways)
def test_what_is_set_already_may_be_set_again(way: str) -> None:
    model = Freezes(way)
    model.a.requires_grad_(False)
    assert_trains_alike(model, X, 2)
    assert not any(":" in op.target for op in trace(model, (), X).graph.ops)


def test_activations_may_become_leaves() -> None:
    class Stops(Freezes):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.tanh(self.a(x)).detach().requires_grad_()
            return self.b(h)

    assert_trains_alike(Stops(""), X, 2)
