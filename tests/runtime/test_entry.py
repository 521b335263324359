"""No rank begins a step unless all can; gradients add up over steps as in the unsplit model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import stagecut
from stagecut.ir.errors import ArgumentError, RuntimeFailure, StagecutError
from tests.cases.models import Chain, Tied
from tests.support.ranks import results, run_ranks


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def tied() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Tied(), torch.randint(0, 16, (8, 5))


def accumulates(rank: int, replicas: int) -> None:
    model, ids = tied()
    plain = copy.deepcopy(model)
    plan = stagecut.partition(model, 2 * replicas, (ids[:2],), replicas=replicas, n_microbatches=2)
    pipe = stagecut.pipeline(plan, model, loss_fn=cross_entropy)
    mine = ids.chunk(replicas)[rank % replicas]
    want = dict(plain.named_parameters())
    for _ in range(3):
        pipe.train_step(mine, target=mine)
        cross_entropy(plain(ids), ids).backward()
        for name, parameter in pipe.named_parameters():
            torch.testing.assert_close(parameter.grad, want[name].grad)


def test_gradients_add_up_over_steps() -> None:
    results(run_ranks(2, accumulates, 1, seconds=100))
    results(run_ranks(4, accumulates, 2, seconds=150))


def raised(call: Callable[[], Any]) -> str:
    try:
        call()
    except StagecutError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def comes_with_other_things(rank: int) -> list[str]:
    model, ids = tied()
    plan = stagecut.partition(model, 2, (ids[:2],), n_microbatches=2)
    pipe = stagecut.pipeline(plan, model, loss_fn=cross_entropy)
    rows = 8 - 4 * rank
    found = [
        raised(lambda: pipe.train_step(ids[:rows], target=ids[:rows])),
        raised(lambda: pipe.train_step(ids.float() if rank else ids, target=ids)),
        raised(lambda: pipe.train_step(ids)),
        raised(lambda: pipe.train_step(ids, target=ids) if rank else pipe(ids)),
    ]
    plain = copy.deepcopy(model)
    loss = pipe.train_step(ids, target=ids)  # none of these did any harm
    torch.testing.assert_close(loss, cross_entropy(plain(ids), ids))
    return found


def test_all_ranks_refuse_what_one_cannot_begin() -> None:
    first, second = results(run_ranks(2, comes_with_other_things, seconds=100))
    for said in (first, second):
        assert said[0].startswith("ArgumentError: the ranks of a pipeline come with different")
        assert "rank 0 has 8, rank 1 has 4 rows" in said[0]
        assert "rank 1: ArgumentError" in first[1]
        assert "loss_fn(output)" in said[2]
        assert "pass train_step(..., target=...)" in said[2]
        assert "some ranks train and others run inference" in said[3]
    assert "float32" in second[1]


def goes_on_after_a_failure(rank: int) -> list[str]:
    model, ids = tied()
    plan = stagecut.partition(model, 2, (ids[:2],), n_microbatches=2)
    pipe = stagecut.pipeline(plan, model, loss_fn=cross_entropy)
    found = [
        raised(lambda: pipe.train_step(ids + 100, target=ids)),
        raised(lambda: pipe.train_step(ids, target=ids)),
    ]
    plain = copy.deepcopy(model)
    again = stagecut.pipeline(plan, model, loss_fn=cross_entropy)
    torch.testing.assert_close(again.train_step(ids, target=ids), cross_entropy(plain(ids), ids))
    return found


def test_a_failed_pipeline_says_so_and_another_can_be_made() -> None:
    for said in results(run_ranks(2, goes_on_after_a_failure, seconds=100)):
        assert said[0].startswith("RuntimeFailure: rank 0, stage 0")
        assert said[1].startswith("RuntimeFailure: an earlier step of this pipeline failed")


@pytest.mark.parametrize("loss", [lambda out: out.mean(), nn.MSELoss(), None])
def test_a_target_too_many_or_missing_is_said_before_anything_runs(loss: Any) -> None:
    x = torch.randn(4, 8)
    pipe = stagecut.pipeline(stagecut.partition(Chain(), 2, (x[:2],)), Chain(), loss_fn=loss)
    target = None if isinstance(loss, nn.Module) else x
    with pytest.raises(ArgumentError, match=r"loss_fn") as caught:
        pipe.train_step(x, target=target)
    assert not isinstance(caught.value, RuntimeFailure)


def test_a_loss_that_sums_is_refused() -> None:
    x = torch.randn(4, 8)
    plan = stagecut.partition(Chain(), 2, (x[:2],))
    pipe = stagecut.pipeline(plan, Chain(), loss_fn=nn.MSELoss(reduction="sum"))
    with pytest.raises(ArgumentError, match="reduction='sum'"):
        pipe.train_step(x, target=x)
