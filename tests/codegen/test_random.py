"""Draws depend on the seed, the op and the micro-batch, and not on where the model is cut."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from stagecut.ir.errors import RuntimeFailure
from tests.codegen.running import pipe_of, sources

X = {"x": torch.randn(8, 6)}


class Dropped(nn.Module):
    """Dropout of several kinds, and noise."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.dropout(torch.tanh(layer(x)), 0.3, self.training)
        x = F.alpha_dropout(x, 0.2, self.training)
        return x + 0.1 * torch.rand_like(x)


def gradients(model: nn.Module, n_stages: int, seed: int = 3) -> list[torch.Tensor | None]:
    own = copy.deepcopy(model)
    pipe = pipe_of(own, {"x": X["x"][:2]}, n_stages, n_microbatches=4)
    torch.manual_seed(seed)
    pipe.train_step(**X)
    return [p.grad for p in own.parameters()]


@pytest.mark.parametrize("n_stages", [2, 3, 4])
def test_the_one_stage_plan_is_the_reference(n_stages: int) -> None:
    model = Dropped()
    assert_close(gradients(model, n_stages), gradients(model, 1))


def test_another_seed_draws_others() -> None:
    model = Dropped()
    first, second = gradients(model, 2, 3)[0], gradients(model, 2, 4)[0]
    assert first is not None and not torch.equal(first, second)


def test_the_users_generator_moves_by_one_draw_a_step() -> None:
    pipe = pipe_of(Dropped(), X)
    torch.manual_seed(7)
    pipe.train_step(**X)
    after = torch.rand(3)
    torch.manual_seed(7)
    torch.randint(2**31, ())
    assert torch.equal(after, torch.rand(3))


def test_so_it_does_in_a_step_that_fails() -> None:
    class Looks(Dropped):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(4, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.table(super().forward(x).argmax(1) * (x[:, 0] > 5))

    pipe = pipe_of(Looks(), X)
    torch.manual_seed(7)
    with pytest.raises(RuntimeFailure, match="index out of range"):
        pipe.train_step(x=X["x"].argsort(1).float() + 6)
    after = torch.rand(3)
    torch.manual_seed(7)
    torch.randint(2**31, ())
    assert torch.equal(after, torch.rand(3))


def test_each_random_op_reseeds_with_its_number() -> None:
    text = sources(pipe_of(Dropped(), X, 3))
    assert [f"self.reseed({i}, device)" in text for i in range(6)] == [True] * 6


def test_what_does_not_draw_does_not_reseed() -> None:
    assert "reseed" not in sources(pipe_of(nn.Sequential(nn.Linear(6, 6)), {"input": X["x"]}, 1))


def test_a_compiled_stage_is_one_graph_and_not_reseeded() -> None:
    pipe = pipe_of(Dropped(), X, 2)
    stage = pipe.runtime.runners[0].module
    stage.seed = 3
    assert torch.equal(stage(X["x"])[0], stage(X["x"])[0])
    compiled = torch.compile(stage, fullgraph=True, backend="eager")
    assert not torch.equal(compiled(X["x"])[0], compiled(X["x"])[0])
