"""Switching a split model between train and eval."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from stagecut.ir.errors import UnsupportedError
from tests.codegen.running import assert_trains_alike, pipe_of, sources

X = {"x": torch.randn(4, 6)}


class Noisy(nn.Module):
    """Adds noise and a second branch while training; scales otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.a(x))
        if self.training:
            h = torch.relu(h)
            h = h + 0.5 * torch.sigmoid(self.b(h))
        else:
            h = h * 3
        return self.c(torch.relu(h)) * (2.0 if self.training else 7.0)


class DropPath(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        keep = torch.rand(x.shape[0], 1, device=x.device) < 0.5
        return x * keep / 0.5


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Linear(6, 6),
            nn.BatchNorm1d(6), nn.Dropout(0.0),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class TwoWidths(nn.Module):
    """Returns something else in each mode."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        h = self.a(x)
        return h if self.training else (h, h.relu())


@pytest.mark.parametrize("n_stages", [1, 2, 3])
@pytest.mark.parametrize("kind", [Noisy, Norms])
def test_eval_answers_as_the_model_in_eval(kind: type[nn.Module], n_stages: int) -> None:
    model = kind()
    pipe = assert_trains_alike(model, X, n_stages)
    unsplit = copy.deepcopy(model).eval()
    pipe.eval()
    assert_close(pipe(**X), unsplit(**X))
    for name, buffer in unsplit.named_buffers():
        assert_close(dict(model.named_buffers())[name], buffer)


def test_back_in_training_it_trains() -> None:
    model = Noisy()
    pipe = pipe_of(model, X)
    pipe.eval()
    pipe(**X)
    pipe.train()
    assert_close(pipe.train_step(**X), model.train()(**X).square().mean().detach())


def test_random_ops_of_training_are_not_drawn_in_eval() -> None:
    model = nn.Sequential(nn.Linear(6, 6), DropPath(), nn.Linear(6, 6))
    pipe = pipe_of(model, {"input": X["x"]})
    pipe.eval()
    before = torch.get_rng_state()
    assert_close(pipe(X["x"]), model.eval()(X["x"]))
    assert torch.equal(before, torch.get_rng_state())


def test_modes_are_written_as_one_writes_them() -> None:
    text = sources(pipe_of(Noisy(), X))
    assert "if self.training:" in text and "if not self.training:" in text
    assert "* (2.0 if self.training else 7.0)" in text


def test_spectral_norm_keeps_its_vectors_in_eval() -> None:
    model = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, 6)
    )
    pipe = pipe_of(model, {"input": X["x"]})
    pipe.eval()
    before = copy.deepcopy(model.state_dict())
    assert_close(pipe(X["x"]), copy.deepcopy(model).eval()(X["x"]))
    assert_close(model.state_dict(), before)


def test_a_module_frozen_in_eval_stays_so() -> None:
    model = Norms()
    model.body[1].eval()
    pipe = assert_trains_alike(model, X)
    assert "training, 0.1" in sources(pipe) or "False, 0.1" in sources(pipe)
    assert not model.body[1].training and model.body[4].training


def test_what_cannot_be_one_program_is_refused() -> None:
    pipe = pipe_of(TwoWidths(), X, 1)
    pipe.train_step(**X)
    assert any("other code in eval" in note for note in pipe.plan.graph.notes)
    with pytest.raises(UnsupportedError, match=r"TwoWidths runs other code in eval"):
        pipe.eval()


def test_a_rate_needs_no_second_trace() -> None:
    class Attends(nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5 if self.training else 0.0)

    q = torch.randn(2, 2, 4, 6)
    pipe = pipe_of(nn.Sequential(Attends(), nn.Linear(6, 6)), {"input": q})
    assert "0.5 if self.training else 0.0" in sources(pipe)
