"""Train and eval mode as the user set them: kept, told, or refused where they were changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stagecut
from stagecut.ir.errors import PlanError

X = torch.randn(4, 3, 8, 8)


def model_of() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5),
        nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 2),
    )  # fmt: skip


def piped(plan: stagecut.Plan, model: nn.Module) -> object:
    return stagecut.pipeline(plan, model, loss_fn=lambda out: out.mean(), runtime="local")


def told(model: nn.Module, **changes: object) -> list[str]:
    plan = stagecut.partition(model, 2, (X,), **changes)  # type: ignore[arg-type]
    return [note for note in plan.data.notes if "was in eval mode" in note]


def test_a_model_in_eval_mode_that_is_planned_to_train_is_told() -> None:
    model = model_of().eval()
    assert len(told(model)) == 1
    assert not model.training
    assert not told(model_of())
    assert not told(model_of().eval(), training=False)
    no_modes = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Linear(8, 8)).eval()
    assert not told(no_modes)


@pytest.mark.parametrize("index", [1, 2, 4])
def test_a_module_that_is_frozen_after_planning_is_refused(index: int) -> None:
    model = model_of()
    plan = stagecut.partition(model, 2, (X,))
    piped(plan, model)
    model[index].eval()
    with pytest.raises(PlanError, match=rf"\b{index} was in train mode and is in eval mode"):
        piped(plan, model)


@pytest.mark.parametrize("index", [1, 2, 4])
def test_a_module_that_was_frozen_when_planned_stays_so_or_is_refused(index: int) -> None:
    model = model_of()
    model[index].eval()
    plan = stagecut.partition(model, 2, (X,))
    piped(plan, model)
    model.train()
    with pytest.raises(PlanError, match=rf"\b{index} was in eval mode and is in train mode"):
        piped(plan, model)


def test_a_whole_model_in_another_mode_is_the_pipelines_to_set() -> None:
    model = model_of()
    plan = stagecut.partition(model, 2, (X,))
    piped(plan, model.eval())
    inference = stagecut.partition(model, 2, (X,), training=False)
    piped(inference, model.train())
