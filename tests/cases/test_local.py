"""Every case, all stages in one process: the split model trains exactly as the unsplit one."""

from __future__ import annotations

import pytest

import stagecut
from tests.cases.table import TABLE, built
from tests.support.equality import assert_trained_alike, cut, train_pipeline, train_unsplit

STEPS = 3
RUNS = [(name, n) for name, entry in TABLE.items() for n in entry.stages]


@pytest.mark.parametrize(("name", "n_stages"), RUNS, ids=lambda value: str(value).replace(" ", "-"))
def test_trains_as_the_unsplit_model(name: str, n_stages: int) -> None:
    entry, case = TABLE[name], built(name)
    want = train_unsplit(case, entry.n_microbatches, STEPS, entry.optimizer)
    args, kwargs, _ = cut((case.args, case.kwargs, case.target), entry.n_microbatches)[0]
    plan = stagecut.partition(
        case.model, n_stages, args, kwargs,
        n_microbatches=entry.n_microbatches, schedule=entry.schedule,
    )  # fmt: skip
    assert len(plan.stages) == n_stages
    assert all(stage.ops for stage in plan.stages)
    pipe = stagecut.pipeline(plan, case.model, loss_fn=case.loss, runtime="local")
    got = train_pipeline(case, pipe, STEPS, entry.optimizer)
    assert_trained_alike(got, want)
