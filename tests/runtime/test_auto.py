"""What is left to the search is chosen, shown, kept, and runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import stagecut
from stagecut.ir.errors import ArgumentError, InfeasibleError
from tests.cases.models import Chain
from tests.support.equality import Case, assert_trained_alike, train_pipeline, train_unsplit

X = torch.zeros(2, 8)


def auto(**given: object) -> stagecut.Plan:
    asked = {"schedule": "auto", "n_microbatches": "auto", "replicas": "auto", "batch_size": 16}
    return stagecut.partition(Chain(8), 2, (X,), **{**asked, **given})  # type: ignore[arg-type]


def test_the_plan_shows_and_keeps_what_was_weighed(tmp_path: Path) -> None:
    plan = auto()
    best = plan.data.alternatives[0]
    assert best.note == "chosen"
    assert plan.data.schedule == best.schedule
    assert plan.data.n_microbatches == best.n_microbatches
    assert plan.data.replicas == best.replicas
    assert best.replicas * best.n_microbatches * best.rows == 16
    text = str(plan)
    assert "weighed" in text
    assert "chosen" in text
    assert "and " in text and " more: " in text
    plan.save(tmp_path / "plan.json")
    assert stagecut.Plan.load(tmp_path / "plan.json").data == plan.data


def test_the_same_input_gives_the_same_choice() -> None:
    assert auto().data.alternatives == auto().data.alternatives


def test_a_chosen_plan_trains() -> None:
    torch.manual_seed(0)
    case = Case(Chain(8), (torch.randn(16, 8),), {}, lambda out: out.square().mean())
    plan = stagecut.partition(
        case.model, 2, (X,), schedule="auto", n_microbatches="auto", batch_size=16
    )
    want = train_unsplit(case, plan.data.n_microbatches, 2)
    pipe = stagecut.pipeline(plan, case.model, loss_fn=case.loss, runtime="local")
    assert_trained_alike(train_pipeline(case, pipe, 2), want)


def test_micro_batches_of_other_sizes_are_costed_as_such() -> None:
    one = stagecut.partition(Chain(8), 2, (X,), n_microbatches=4, batch_size=64)
    other = stagecut.partition(Chain(8), 2, (torch.zeros(16, 8),), n_microbatches=4)
    assert one.stages[0].flops_forward == other.stages[0].flops_forward
    assert one.step_seconds == other.step_seconds


def test_what_does_not_go_together_is_refused() -> None:
    for given, words in [
        ({"batch_size": None}, "need batch_size"),
        ({"replicas": "many"}, "replicas is 'many'"),
        ({"replicas": 0}, "replicas is 0"),
        ({"pins": {"steps.0": 0}}, "pins name stages"),
        ({"schedule": "0F0\n1F0"}, "the search weighs built-in schedules"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            auto(**given)
    with pytest.raises(InfeasibleError, match="choices fits"):
        auto(memory_limit=1000)


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_schedule_alone_is_chosen_at_four_micro_batches_a_device(replicas: int) -> None:
    plan = stagecut.partition(Chain(8), 4, (X,), schedule="auto", replicas=replicas)
    assert plan.data.n_microbatches == 4 * 4 // replicas
    others = {row.schedule for row in plan.data.alternatives}
    assert {"1f1b", "gpipe", "interleaved"} <= others
    assert {row.n_microbatches for row in plan.data.alternatives} == {16 // replicas}
