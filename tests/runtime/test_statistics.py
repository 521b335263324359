"""A norm over the batch that would get one value a channel is told before the step begins."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import stagecut
from stagecut.ir.errors import ArgumentError, RuntimeFailure
from stagecut.pipe import Pipeline
from tests.codegen.running import mean_square
from tests.support.ranks import results, run_ranks


class Pooled(nn.Module):
    """An image down to one place a channel."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(6, 6), nn.BatchNorm2d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.a(x)[:, :, None, None])[:, :, 0, 0]


class Halves(nn.Module):
    """Half the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.a(x)[: x.shape[0] // 2 + 1])


class Decides(nn.Module):
    """Cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        return x * 2 if x.sum() > 1 else x


NORMS: dict[str, Callable[[], nn.Module]] = {
    "1d": lambda: nn.BatchNorm1d(6),
    "2d": Pooled,
    "plain": lambda: nn.BatchNorm1d(6, momentum=0.5, affine=False),
    "the batch alone": lambda: nn.BatchNorm1d(6, track_running_stats=False),
}


def pipe_of(norm: nn.Module, rows: int = 4) -> Pipeline:
    model = nn.Sequential(nn.Linear(6, 6), norm, nn.Linear(6, 6))
    plan = stagecut.partition(model, 2, (torch.randn(rows, 6),), n_microbatches=4)
    return stagecut.pipeline(plan, model, loss_fn=mean_square, runtime="local")


@pytest.mark.parametrize("name", NORMS)
def test_one_row_is_refused_and_the_next_step_runs(name: str) -> None:
    pipe = pipe_of(NORMS[name]())
    pattern = (
        r"micro-batch 3 has 1 row of the batch's 7, .*leaves \"1(\.norm)?\" .*"
        r" \(its input is \[1, 6.*8 rows"
    )
    with pytest.raises(ArgumentError, match=rf"{pattern} or more, or .*n_microbatches=3\)"):
        pipe.train_step(torch.randn(7, 6))
    assert not any(b.any() for n, b in pipe.state_dict().items() if n.endswith("running_mean"))
    assert torch.isfinite(pipe.train_step(torch.randn(8, 6)))


def test_what_the_error_proposes_runs() -> None:
    pipe = pipe_of(nn.BatchNorm1d(6))
    for rows, n in ((7, 3), (5, 2), (3, 1), (2, 1)):
        pipe.n_microbatches = 4
        with pytest.raises(ArgumentError, match=rf"n_microbatches={n}\)"):
            pipe.train_step(torch.randn(rows, 6))
        pipe.n_microbatches = n
        pipe.train_step(torch.randn(rows, 6))
    with pytest.raises(ArgumentError, match=r"Give the step 2 rows or more$"):
        pipe.train_step(torch.randn(1, 6))


@pytest.mark.parametrize("name", NORMS)
def test_in_eval_running_statistics_need_no_rows(name: str) -> None:
    pipe = pipe_of(NORMS[name]()).eval()
    if name == "the batch alone":
        with pytest.raises(ArgumentError, match="one value a channel"):
            pipe(torch.randn(4, 6))
    else:
        assert pipe(torch.randn(4, 6)).shape == (4, 6)


def test_one_row_with_places_is_enough() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.Conv1d(3, 2, 1))
    plan = stagecut.partition(model, 2, (torch.randn(2, 2, 6),), n_microbatches=4)
    pipe = stagecut.pipeline(plan, model, loss_fn=mean_square, runtime="local")
    assert torch.isfinite(pipe.train_step(torch.randn(4, 2, 6)))


def test_rows_that_the_model_cuts_away_count() -> None:
    pipe = pipe_of(Halves())
    with pytest.raises(ArgumentError, match=r"1 row of the batch's 4"):
        pipe.train_step(torch.randn(4, 6))
    pipe.train_step(torch.randn(8, 6))


def test_in_a_module_that_runs_as_it_is_the_failure_says_so() -> None:
    pipe = pipe_of(Decides())
    with pytest.raises(RuntimeFailure, match=r"micro-batch 1 \(1 row\), forward: [\s\S]*fewer mic"):
        pipe.train_step(torch.randn(5, 6))


def refused_everywhere(rank: int) -> str:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6))
    plan = stagecut.partition(model, 2, (torch.randn(4, 6),), n_microbatches=4)
    pipe = stagecut.pipeline(plan, model, loss_fn=mean_square)
    with pytest.raises(ArgumentError) as caught:
        pipe.train_step(torch.ones(5, 6))
    assert torch.isfinite(pipe.train_step(torch.arange(48.0).reshape(8, 6)))
    return str(caught.value)


def test_every_process_refuses_and_none_has_begun() -> None:
    first, second = results(run_ranks(2, refused_everywhere))
    assert first == second and "micro-batch 1 has 1 row" in first
