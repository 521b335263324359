"""Inputs of a step: what a model calls `target`, dataclasses, and modes that cannot be."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import stagecut
from stagecut.ir.errors import ArgumentError, UnsupportedError
from tests.cases.models import Chain

X, Y = torch.randn(4, 8), torch.randn(4, 8)


class Compares(nn.Module):
    """Takes an input of the name that `train_step` has for the loss's."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Chain(4)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (self.body(x) - target).square()


def test_a_model_input_called_target_is_the_models() -> None:
    model = Compares()
    want = model(X, Y).mean()
    plan = stagecut.partition(model, 2, (X, Y))
    pipe = stagecut.pipeline(plan, model, loss_fn=torch.mean)
    assert_close(pipe.train_step(X, target=Y), want)
    both = stagecut.pipeline(plan, model, loss_fn=lambda out, target: (out * target).mean())
    assert_close(both.train_step(X, Y, target=X), (model(X, Y) * X).mean())


def test_an_array_is_named_and_not_printed() -> None:
    model = Chain(4)
    pipe = stagecut.pipeline(stagecut.partition(model, 2, (X,)), model, loss_fn=torch.mean)
    with pytest.raises(ArgumentError, match=r"x is ndarray \(40, 8\), traced as a tensor") as told:
        pipe.train_step(np.zeros((40, 8)))
    assert len(str(told.value).splitlines()) == 2


class Attends(nn.Module):
    """Takes a mask or table that is no batch."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = torch.tanh(step(x) @ table.new_ones(8, 8) / 8 + table.sum(0, keepdim=True))
        return x


class Fixed(Attends):
    """A table whose length the model's own weights fix."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return super().forward(x, self.weights @ table[None].squeeze(0) * torch.ones(1, 1))


WHOLE: dict[str, tuple[type[Attends], torch.Tensor, dict[str, None], str]] = {
    "a mask of one row": (Attends, torch.randn(1, 8), {}, "it has other rows than the batch"),
    "declared": (Attends, torch.randn(4, 8), {"table": None}, "as declared"),
    "fixed by the model": (Fixed, torch.randn(4, 8), {}, "the model fixes its length"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_inputs_that_are_no_batch_go_whole(name: str) -> None:
    kind, table, split, why = WHOLE[name]
    model, x = kind(), torch.randn(8, 8)
    unsplit = copy.deepcopy(model)
    loss = unsplit(x, table).square().mean()
    loss.backward()
    plan = stagecut.partition(model, 2, (x[:4], table), n_microbatches=2, split=split)
    assert f"table goes whole to every micro-batch: {why}" in plan.data.graph.notes
    assert f"table goes whole to every micro-batch: {why}" in " ".join(str(plan).split())
    pipe = stagecut.pipeline(plan, model, loss_fn=lambda out: out.square().mean())
    assert_close(pipe.train_step(x, table), loss.detach())
    for parameter, own in zip(pipe.parameters(), unsplit.parameters(), strict=True):
        assert_close(parameter.grad, own.grad)


@dataclass
class Batch:
    x: torch.Tensor
    scale: float = 1.0
    mask: torch.Tensor | None = None


@dataclass
class Answer:
    logits: torch.Tensor
    more: Batch
    count: int = 3


class Structured(nn.Module):
    """Dataclasses in and out, registered with nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Chain(3), Chain(3)

    def forward(self, batch: Batch) -> Answer:
        early = self.first(batch.x) * batch.scale
        return Answer(self.second(early), Batch(early, 2.0))


def _loss(answer: Answer) -> torch.Tensor:
    return answer.logits.square().mean() + answer.more.x.mean()


@pytest.mark.parametrize("n_stages", [1, 2, 3])
def test_dataclasses_need_no_registration(n_stages: int) -> None:
    model, batch = Structured(), Batch(X, 0.5)
    unsplit = copy.deepcopy(model)
    loss = _loss(unsplit(batch))
    loss.backward()
    plan = stagecut.partition(model, n_stages, (Batch(X[:2], 0.5),), n_microbatches=2)
    pipe = stagecut.pipeline(plan, model, loss_fn=_loss)
    assert_close(pipe.train_step(batch), loss.detach())
    for name, parameter in unsplit.named_parameters():
        assert_close(dict(pipe.named_parameters())[name].grad, parameter.grad)
    answer = pipe(batch)
    assert type(answer) is Answer and type(answer.more) is Batch and answer.more.mask is None
    assert_close(answer.logits, model(batch).logits)


def test_a_mode_that_cannot_be_is_refused_when_asked_for() -> None:
    class TwoWidths(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x) if self.training else F.pad(self.a(x), (0, 1))

    model = TwoWidths()
    pipe = stagecut.pipeline(stagecut.partition(model, 1, (X,)), model, loss_fn=torch.mean)
    with pytest.raises(UnsupportedError, match=r"other code in eval.*training=False"):
        pipe.eval()
    assert pipe.training
    assert_close(pipe.train_step(X), model(X).mean())
