"""A plan is data: through JSON and back it is the same, and what is no plan is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from stagecut.ir.errors import PlanError
from stagecut.ir.plan import dump_plan, load_plan
from tests.report.sample import sample_plan


def test_json_round_trip() -> None:
    plan = sample_plan()
    assert load_plan(dump_plan(plan)) == plan


def test_the_fingerprint_is_of_the_program_and_not_of_its_costs() -> None:
    plan = sample_plan()
    assert load_plan(dump_plan(plan)).fingerprint == plan.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(stagecut=99), "format 99"),
        (lambda d: d.pop("plan"), "no 'plan' in it"),
        (lambda d: d["plan"].pop("method"), "missing or unknown: method"),
        (lambda d: d["plan"].update(n_microbatches="4"), "n_microbatches is '4', expected int"),
        (lambda d: d.update(fingerprint="0"), "changed after it was saved"),
    ],
)
def test_a_damaged_plan_is_refused_with_the_reason(change, message) -> None:  # type: ignore[no-untyped-def]
    document = json.loads(dump_plan(sample_plan()))
    change(document)
    with pytest.raises(PlanError, match=message):
        load_plan(json.dumps(document))


def test_a_plan_written_before_pins_were_kept_is_read() -> None:
    document = json.loads(dump_plan(sample_plan()))
    del document["plan"]["pins"], document["plan"]["tied"]
    plan = load_plan(json.dumps(document))
    assert (plan.pins, plan.tied) == ((), "replicate")


def test_pins_go_through_json() -> None:
    plan = replace(sample_plan(), pins=(("blocks.4", 1), ("embed", 0)), tied="colocate")
    assert load_plan(dump_plan(plan)) == plan


def test_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(PlanError, match="not JSON"):
        load_plan("plan?")
