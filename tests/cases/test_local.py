"""Every case, all stages in one process: the split model trains exactly as the unsplit one."""

from __future__ import annotations

import copy

import pytest

import stagecut
from tests.cases.table import TABLE, built, planned
from tests.support.equality import (
    Case,
    assert_answers_alike,
    assert_trained_alike,
    train_pipeline,
    train_unsplit,
)

STEPS = 3
RUNS = [(name, n) for name, entry in TABLE.items() for n in entry.stages]


@pytest.mark.parametrize(("name", "n_stages"), RUNS, ids=lambda value: str(value).replace(" ", "-"))
def test_trains_as_the_unsplit_model(name: str, n_stages: int) -> None:
    entry, case = TABLE[name], built(name)
    plan = planned(name, n_stages)
    assert len(plan.stages) == n_stages
    assert all(stage.ops for stage in plan.stages)
    unsplit = Case(copy.deepcopy(case.model), case.args, case.kwargs, case.loss, case.target)
    pipe = stagecut.pipeline(plan, case.model, loss_fn=case.loss, runtime="local")
    if entry.training:
        want = train_unsplit(unsplit, entry.n_microbatches, STEPS, entry.optimizer)
        assert_trained_alike(train_pipeline(case, pipe, STEPS, entry.optimizer), want)
    else:
        assert_answers_alike(unsplit, pipe, entry.n_microbatches)
