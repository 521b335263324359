"""Fewer devices: told where they are faster, taken on request, never where they are not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import stagecut
from stagecut.choosing import Decision
from stagecut.fewer import _fewer_than, even_seconds, with_fewer
from stagecut.ir import plan as ir
from stagecut.ir.device import Cluster, Link
from stagecut.ir.devices import cluster
from stagecut.ir.errors import InfeasibleError
from stagecut.ir.problem import Problem
from stagecut.placing import posed_again
from stagecut.report.units import seconds_text
from tests.cases.models import Chain
from tests.support.equality import Case, assert_trained_alike, train_pipeline, train_unsplit

WIDTH = 64
X = torch.zeros(4, 512, WIDTH)


class Wide(nn.Module):
    """Blocks that compute much and pass on little: worth a device each, on any link."""

    def __init__(self, depth: int = 8, width: int = 2048) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, width), nn.Tanh(), nn.Linear(width, WIDTH))
            for _ in range(depth)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def linked(n: int, bytes_per_second: float) -> Cluster:
    """GPUs that share links of one rate."""
    made = cluster("T4", n)
    link = Link(1e-5, bytes_per_second)
    return Cluster("slow", made.devices, devices_per_node=n, inside=link, between=link)


def planned(rate: float, n: int = 4, x: torch.Tensor = X, **changes: object) -> stagecut.Plan:
    given = {"cluster": linked(n, rate), "n_microbatches": 8, **changes}
    return stagecut.partition(Wide(), n, (x,), **given)  # type: ignore[arg-type]


SLOW, FAST = 2e8, 1e12


def told(plan: stagecut.Plan) -> list[str]:
    return [note for note in plan.data.notes if note.startswith("Fewer devices")]


def test_numbers_of_devices_that_are_tried() -> None:
    assert _fewer_than(6, 2) == [5, 4, 3, 2, 1]
    assert _fewer_than(1, 8) == []
    assert _fewer_than(20, 4) == [19, 16, 12, 10, 8, 5, 4, 2, 1]


def test_where_transfers_dominate_the_plan_says_so_and_takes_fewer_on_request() -> None:
    plan = planned(SLOW)
    (note,) = told(plan)
    number = int(re.search(r"would be faster: a step takes [\d.]+ .?s on (\d) device", note)[1])
    assert plan.n_stages == 4 and number < 4
    taken = planned(SLOW, allow_fewer=True)
    assert taken.n_stages == len(taken.data.cluster.devices) == number
    assert taken.data.n_microbatches == plan.data.n_microbatches
    assert taken.step_seconds < plan.step_seconds
    (note,) = told(taken)
    assert f"Of 4 devices it uses {number}: start as many ranks" in note
    alone = [planned(SLOW, n).step_seconds for n in (1, 2, 3)]
    assert taken.step_seconds <= min(alone) * (1 + 1e-9)
    assert f"a step takes {seconds_text(taken.step_seconds)} on {number} device" in note


@pytest.mark.parametrize(("by_auto", "taken"), [(5.0, 5.0), (7.5, 7.0), (12.0, 7.0)])
def test_the_shorter_step_is_taken_and_told(by_auto: float, taken: float) -> None:
    """The method that was asked for may have a smaller bottleneck and a longer step."""
    plans = {n: planned(SLOW, n, method="dp").data for n in (1, 2, 3, 4)}
    steps = {(4, "auto"): 10.0, (2, "dp"): 7.0, (2, "auto"): by_auto}

    def cut(way: Decision, devices: Cluster, method: str) -> tuple[ir.Plan, Problem]:
        n = len(devices.devices)
        plan = replace(plans[n], step_seconds=steps.get((n, method), 9.0), method=method)
        return plan, posed_again(plans[n])[0]

    way = Decision("1f1b", 8, 1, 4, "auto")
    plan = with_fewer(cut, way, linked(4, SLOW), "auto", 1, True)
    assert plan.step_seconds == taken
    assert f"a step takes {seconds_text(taken)} on 2 devices, 10.0 s on 4" in plan.notes[-1]


def test_where_computing_dominates_nothing_is_said_or_left_out() -> None:
    for allowed in (False, True):
        plan = planned(FAST, allow_fewer=allowed)
        assert plan.n_stages == 4
        assert not told(plan)


def test_no_step_is_faster_than_that_of_equal_stages_that_send_nothing() -> None:
    for rate in (SLOW, FAST):
        for schedule in ("1f1b", "gpipe", "zero_bubble"):
            plan = planned(rate, schedule=schedule, method="dp")
            problem, _ = posed_again(plan.data)
            for n in (1, 2, 3):
                fewer = planned(rate, n, schedule=schedule, method="dp")
                assert even_seconds(problem, plan.data, n) <= fewer.step_seconds


def test_schedules_of_two_stages_a_device_are_compared_too() -> None:
    plan = planned(SLOW, schedule="interleaved", allow_fewer=True)
    assert len(plan.data.cluster.devices) < 4
    assert plan.n_stages == 2 * len(plan.data.cluster.devices)
    assert planned(SLOW, schedule="interleaved").step_seconds > plan.step_seconds


def test_replicas_stay_and_each_gets_fewer() -> None:
    plan = planned(SLOW, 8, replicas=2, allow_fewer=True)
    assert plan.data.replicas == 2
    assert len(plan.data.cluster.devices) == 2 * plan.n_stages < 8


def test_stages_that_pins_name_are_not_left_out() -> None:
    plan = planned(SLOW, pins={"blocks.7": 3}, allow_fewer=True)
    assert plan.n_stages == 4
    assert not told(plan)


def test_one_memory_limit_a_device_is_cut_short_too() -> None:
    plan = planned(SLOW, memory_limit=["8GiB", "9GiB", "7GiB", "10GiB"], allow_fewer=True)
    assert plan.n_stages < 4
    limits = [stage.memory.limit / 2**30 for stage in plan.stages]
    assert limits == [8.0, 9.0, 7.0][: plan.n_stages]


def test_fewer_that_do_not_fit_are_not_offered() -> None:
    small = torch.zeros(4, 8, WIDTH)  # weights are all that takes memory
    assert planned(1e6, x=small, allow_fewer=True).n_stages < 3
    plan = planned(1e6, x=small, memory_limit="12MiB", allow_fewer=True)
    assert plan.fits and plan.n_stages == 4
    assert not told(plan)


def test_a_baseline_is_taken_as_it_is() -> None:
    assert planned(SLOW, method="uniform", allow_fewer=True).n_stages == 4


def test_a_model_of_fewer_groups_than_devices() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.zeros(2, 8)
    with pytest.raises(InfeasibleError, match="ask for 2 stages"):
        stagecut.partition(model, 4, (x,))
    plan = stagecut.partition(model, 4, (x,), allow_fewer=True)
    assert plan.n_stages <= 2
    assert any(note.startswith("4 stages are not possible: ") for note in plan.data.notes)


def test_the_taken_plan_trains_as_the_unsplit_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    case = Case(Chain(), (torch.randn(8, 8),), {}, lambda out: out.square().mean())
    want = train_unsplit(case, 4, 2)
    plan = stagecut.partition(
        case.model, 4, (case.args[0][:2],), cluster=linked(4, 1e6), n_microbatches=4,
        allow_fewer=True,
    )  # fmt: skip
    assert plan.n_stages < 4
    plan.save(tmp_path / "plan.json")
    again = stagecut.Plan.load(tmp_path / "plan.json")
    pipe = stagecut.pipeline(again, case.model, loss_fn=case.loss, runtime="local")
    assert_trained_alike(train_pipeline(case, pipe, 2), want)
