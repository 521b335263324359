"""A failure on one rank ends all of them, with its own words."""

from __future__ import annotations

import os
import time

import pytest
import torch
from torch import nn

import stagecut
from stagecut.ir.errors import RuntimeFailure
from tests.support.ranks import run_ranks

SECONDS = 20


class Picky(nn.Module):
    """Fails in the forward of its third layer where the input is not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.table = nn.Embedding(4, 8)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = torch.tanh(step(x))
        return x + self.table(ids)


def bad_index(rank: int) -> float:
    torch.manual_seed(0)
    model = Picky()
    example = torch.randn(2, 8), torch.zeros(2, dtype=torch.long)
    pins = {"steps.0": 0, "steps.1": 1, "steps.2": 2, "table": 2}
    plan = stagecut.partition(model, 3, example, pins=pins)
    pipe = stagecut.pipeline(plan, model, loss_fn=lambda out: out.square().mean(), n_microbatches=4)
    pipe.train_step(torch.randn(8, 8), torch.zeros(8, dtype=torch.long))
    start = time.monotonic()
    try:
        # Row 5 is in the third micro-batch; the table has four rows.
        pipe.train_step(torch.randn(8, 8), torch.tensor([0, 0, 0, 0, 0, 9, 0, 0]))
    except RuntimeFailure as error:
        assert time.monotonic() - start < SECONDS
        raise error
    return 0.0


def killed(rank: int) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    plan = stagecut.partition(model, 2, (torch.randn(2, 8),))

    def loss(out: torch.Tensor) -> torch.Tensor:
        os._exit(1)

    pipe = stagecut.pipeline(plan, model, loss_fn=loss)
    pipe.train_step(torch.randn(8, 8))


def test_every_rank_tells_the_first_failure() -> None:
    ended = run_ranks(3, bad_index, seconds=90)
    for end in ended:
        assert end.error is not None
        assert end.error.startswith("RuntimeFailure: rank 2, stage 2, micro-batch 2 (2 rows), for")
        assert "index out of range" in end.error
        assert "test_failures.py" in end.error


def test_a_killed_rank_ends_the_others() -> None:
    first, second = run_ranks(2, killed, seconds=60)
    assert second.error is not None
    assert second.error.startswith("killed")
    assert first.error is not None
    assert "lost its connection to another rank" in first.error


def test_a_failure_in_one_process_names_the_users_line() -> None:
    model = Picky()
    example = torch.randn(2, 8), torch.zeros(2, dtype=torch.long)
    pipe = stagecut.pipeline(stagecut.partition(model, 2, example), model, runtime="local")
    with pytest.raises(RuntimeFailure, match=r"table .*test_failures.py:\d+: .*F.embedding"):
        pipe(torch.randn(4, 8), torch.tensor([0, 1, 9, 0]))


def test_a_failing_loss_names_its_line() -> None:
    def loss(out: torch.Tensor) -> torch.Tensor:
        return out @ out[:, :3]

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    plan = stagecut.partition(model, 2, (torch.randn(2, 8),))
    pipe = stagecut.pipeline(plan, model, loss_fn=loss, runtime="local")
    with pytest.raises(RuntimeFailure, match=r"test_failures.py:\d+, in loss: return out @ out"):
        pipe.train_step(torch.randn(4, 8))


def test_a_pipeline_goes_on_after_a_failure_in_one_process() -> None:
    model = Picky()
    example = torch.randn(2, 8), torch.zeros(2, dtype=torch.long)
    pipe = stagecut.pipeline(stagecut.partition(model, 2, example), model, runtime="local")
    with pytest.raises(RuntimeFailure):
        pipe(torch.randn(4, 8), torch.tensor([0, 1, 9, 0]))
    x, ids = torch.randn(4, 8), torch.tensor([0, 1, 2, 0])
    torch.testing.assert_close(pipe(x, ids), model(x, ids))
