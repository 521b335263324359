"""Modules that draw from a generator of their own run as they are, and draw what they would."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import stagecut
from stagecut.frontend import trace
from stagecut.ir.errors import TraceError
from tests.codegen.running import mean_square, pipe_of

X = torch.randn(6, 4)
ELSEWHERE = torch.Generator()

Draw = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
DRAWS: dict[str, Draw] = {
    "rand": lambda x, own: x + torch.rand(x.shape[-1], generator=own),
    "bernoulli_": lambda x, own: x * torch.empty_like(x).bernoulli_(0.5, generator=own),
    "bernoulli": lambda x, own: x * torch.bernoulli(torch.full_like(x, 0.5), generator=own),
    "normal_": lambda x, own: x + torch.empty_like(x).normal_(generator=own),
    "init": lambda x, own: x + nn.init.uniform_(torch.empty_like(x), generator=own),
    "randperm": lambda x, own: x[:, torch.randperm(x.shape[1], generator=own)],
    "multinomial": lambda x, own: x[:, torch.multinomial(torch.ones(4), 4, generator=own)],
}


class Noisy(nn.Module):
    def __init__(self, draw: Draw, own: torch.Generator | None = None) -> None:
        super().__init__()
        self.a, self.draw = nn.Linear(4, 4), draw
        self.own = own or torch.Generator().manual_seed(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.draw(torch.tanh(self.a(x)), self.own)


class Seeded(Noisy):
    """Draws the same in every call, from a generator that lives as long."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.draw(torch.tanh(self.a(x)), torch.Generator().manual_seed(7))


class Again(Noisy):
    """The same, from a generator that it keeps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.own.manual_seed(7)
        return super().forward(x)


class Global(Noisy):
    """The generator is no attribute of any module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.draw(torch.tanh(self.a(x)), ELSEWHERE)


def chain(kind: type[Noisy], draw: Draw, own: torch.Generator | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), kind(draw, own), nn.Linear(4, 4), nn.Linear(4, 4))


@pytest.mark.parametrize("kind", [Noisy, Seeded, Again, Global])
@pytest.mark.parametrize("draw", DRAWS)
def test_micro_batches_draw_in_their_order(draw: str, kind: type[Noisy]) -> None:
    model = chain(kind, DRAWS[draw])
    unsplit, state = copy.deepcopy(model), ELSEWHERE.get_state()
    pipe = pipe_of(model, {"input": X[:2]}, 3, n_microbatches=3)
    assert [op.target for op in pipe.plan.graph.ops if ":" in op.target] == ["module:1"]
    assert "cannot hold a torch.Generator" in pipe.plan.frontend
    got = torch.stack([pipe.train_step(X) for _ in range(2)])
    ELSEWHERE.set_state(state)
    want = [sum(mean_square(unsplit(part)) / 3 for part in X.chunk(3)) for _ in range(2)]
    assert_close(got, torch.stack(want))


@pytest.mark.parametrize("kind", [Noisy, Again, Global])
def test_planning_draws_nothing(kind: type[Noisy]) -> None:
    model = chain(kind, DRAWS["rand"])
    own = model[1].own
    assert isinstance(own, torch.Generator)
    before = own.get_state(), ELSEWHERE.get_state()
    stagecut.partition(model, 2, (X,))
    assert_close((own.get_state(), ELSEWHERE.get_state()), before)
    assert model[1].own is own


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("draw", DRAWS)
def test_in_the_models_own_forward_it_is_refused(draw: str, training: bool) -> None:
    with pytest.raises(TraceError, match=r"test_generators.py:\d+: .*leave generator= out") as told:
        trace(Noisy(DRAWS[draw]), (X,), training=training)
    assert len(str(told.value).splitlines()) < 15


@pytest.mark.parametrize("frontend", ["export", "recorded"])
def test_frontends_that_trace_it_all_the_same_name_those_that_do_not(frontend: str) -> None:
    advice = rf'This is frontend="{frontend}"; with frontend="auto" or "symbolic" 1 runs as it is'
    with pytest.raises(TraceError, match=advice):
        trace(nn.Sequential(*chain(Noisy, DRAWS["rand"])), (X,), frontend=frontend)


def test_two_modules_do_not_draw_from_one() -> None:
    shared = torch.Generator()
    model = nn.Sequential(
        *chain(Noisy, DRAWS["rand"], shared), *chain(Noisy, DRAWS["rand"], shared)
    )
    with pytest.raises(TraceError, match=r"Nor around a module: 5: .* generator that 1 draws from"):
        stagecut.partition(model, 2, (X,))


def test_a_module_around_both_may() -> None:
    shared = torch.Generator()
    pair = nn.Sequential(Noisy(DRAWS["rand"], shared), Noisy(DRAWS["rand"], shared))
    model = nn.Sequential(nn.Linear(4, 4), pair, nn.Linear(4, 4))
    unsplit = copy.deepcopy(model)
    pipe = pipe_of(model, {"input": X}, 2)
    assert [op.target for op in pipe.plan.graph.ops if ":" in op.target] == ["module:1"]
    assert_close(pipe.train_step(X), mean_square(unsplit(X)).detach())


def test_a_generator_that_eval_leaves_alone() -> None:
    class Drops(Noisy):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if self.training else F.relu(self.a(x))

    model = chain(Drops, DRAWS["bernoulli_"])
    pipe = pipe_of(model, {"input": X}, 2)
    assert_close(pipe.eval()(X), model.eval()(X))
