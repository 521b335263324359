"""Ranks that do not fit together say so on every rank, before anything is sent."""

from __future__ import annotations

import pytest
import torch

import stagecut
from stagecut.ir.errors import PlanError
from tests.cases.models import Chain
from tests.support.ranks import run_ranks

X = torch.zeros(2, 8)


def different_cuts(rank: int) -> None:
    torch.manual_seed(0)
    model = Chain()
    pins = {"steps.1": 1} if rank else {"steps.4": 0}
    stagecut.pipeline(stagecut.partition(model, 2, (X,), pins=pins), model)


def different_models(rank: int) -> None:
    model = Chain(6 if rank == 0 else 7)
    stagecut.pipeline(stagecut.partition(model, 2, (X,)), model)


def one_rank_has_another_model(rank: int) -> None:
    plan = stagecut.partition(Chain(6), 2, (X,))
    stagecut.pipeline(plan, Chain(6 if rank == 0 else 5))


def wrong_world(rank: int) -> None:
    model = Chain()
    stagecut.pipeline(stagecut.partition(model, 3, (X,)), model, runtime="distributed")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (different_cuts, "rank 1: its plan differs from rank 0's"),
        (different_models, "rank 1: its plan differs from rank 0's"),
        (one_rank_has_another_model, "rank 1: Chain is not the model that was planned"),
        (wrong_world, "the plan is for 3 devices and 2 ranks are running"),
    ],
)
def test_every_rank_raises_the_same_before_any_send(function, words) -> None:  # type: ignore[no-untyped-def]
    ended = run_ranks(2, function, seconds=60)
    assert all(end.error and end.error.startswith("PlanError") for end in ended)
    assert all(words in end.error for end in ended if end.error)
    assert ended[0].error == ended[1].error


def test_a_model_of_other_shapes_is_refused_in_one_process() -> None:
    plan = stagecut.partition(Chain(), 2, (X,))
    other = Chain()
    other.steps[2] = torch.nn.Linear(8, 9)
    with pytest.raises(PlanError, match=r"steps.2.weight was planned as f32\[8, 8\]"):
        stagecut.pipeline(plan, other, runtime="local")


def test_a_model_without_values_is_refused() -> None:
    with torch.device("meta"):
        model = Chain()
    plan = stagecut.partition(model, 2, (X,))
    with pytest.raises(PlanError, match="no values"):
        stagecut.pipeline(plan, model, runtime="local")
