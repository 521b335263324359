"""`schedule="folded"`: a device's METIS part as several stages, trained as the unsplit model is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import stagecut
from stagecut.ir.errors import ArgumentError, PlanError
from stagecut.placing import posed_again
from tests.cases.models import Chain
from tests.support.equality import Case, assert_trained_alike, train_pipeline, train_unsplit
from tests.support.ranks import results, run_ranks

WIDTHS = (8, 16, 24)


class Level(nn.Module):
    """Two convolutions of one resolution."""

    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(given, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh()).tanh()


class UNet(nn.Module):
    """Down and up again, with a skip at every level."""

    def __init__(self) -> None:
        super().__init__()
        given = (3, *WIDTHS)
        self.down = nn.ModuleList(Level(a, b) for a, b in zip(given, WIDTHS, strict=False))
        self.middle = Level(WIDTHS[-1], WIDTHS[-1])
        below = (*WIDTHS[1:], WIDTHS[-1])
        self.up = nn.ModuleList(Level(a + b, b) for a, b in zip(below, WIDTHS, strict=True))
        self.last = nn.Conv2d(WIDTHS[0], 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for level in self.down:
            x = level(x)
            skips.append(x)
            x = nn.functional.avg_pool2d(x, 2)
        x = self.middle(x)
        for level, skip in zip(reversed(self.up), reversed(skips), strict=True):
            x = level(torch.cat([nn.functional.interpolate(x, scale_factor=2.0), skip], 1))
        return self.last(x)


def mean_square(out: torch.Tensor) -> torch.Tensor:
    return out.square().mean()


def built() -> Case:
    torch.manual_seed(0)
    return Case(UNet(), (torch.randn(8, 3, 16, 16),), {}, mean_square)


def planned(n: int = 2, rows: int = 2, size: int = 16, **changes: object) -> stagecut.Plan:
    given = {"schedule": "folded", "method": "metis", "n_microbatches": 4, "cluster": "T4"}
    example = torch.zeros(rows, 3, size, size)
    return stagecut.partition(UNet(), n, (example,), **{**given, **changes})  # type: ignore[arg-type]


def trained_on(rank: int, path: str) -> tuple[int, ...]:
    case = built()
    want = train_unsplit(case, 4, 3)
    pipe = stagecut.pipeline(stagecut.Plan.load(path), case.model, loss_fn=case.loss)
    assert_trained_alike(train_pipeline(case, pipe, 3), want, whole=False)
    return tuple(pipe.runtime.runners)


def test_trains_on_two_processes_of_which_one_has_two_stages(tmp_path: Path) -> None:
    plan = planned()
    assert plan.data.device_of_stage == (0, 1, 0)
    plan.save(tmp_path / "plan.json")
    assert results(run_ranks(2, trained_on, str(tmp_path / "plan.json"))) == [(0, 2), (1,)]


@pytest.mark.parametrize("n_microbatches", [1, 3, 4, 8])
def test_trains_with_any_number_of_microbatches(n_microbatches: int) -> None:
    case = built()
    want = train_unsplit(case, n_microbatches, 2)
    pipe = stagecut.pipeline(
        planned(3), case.model, loss_fn=case.loss, runtime="local", n_microbatches=n_microbatches
    )
    assert_trained_alike(train_pipeline(case, pipe, 2), want)


def test_skips_stay_on_their_device() -> None:
    plan = planned(rows=8, size=64)
    skips = [t for s in plan.stages for t in s.sends if (t.source, t.destination) == (0, 2)]
    assert sum(t.n_bytes for t in skips) >= 8 * WIDTHS[0] * 64 * 64 * 4
    one = planned(rows=8, size=64, schedule="1f1b")

    def bytes_between_devices(plan: stagecut.Plan) -> float:
        device = plan.data.device_of_stage
        sent = [t for s in plan.stages for t in s.sends]
        return sum(t.n_bytes for t in sent if device[t.source] != device[t.destination])

    assert bytes_between_devices(plan) < bytes_between_devices(one)


def test_stages_of_a_device_exchange_values_for_nothing() -> None:
    problem, _ = posed_again(planned().data)
    for links in (problem.link_latency_seconds, problem.link_seconds_per_byte):
        assert (links > 0).tolist() == [
            [False, True, False],
            [True, False, True],
            [False, True, False],
        ]


def test_auto_folds_where_a_step_is_faster() -> None:
    folded = planned(rows=8, size=64, method="auto")
    assert folded.data.device_of_stage == (0, 1, 0)
    assert folded.data.method == "folded"
    one = planned(rows=8, size=64, method="auto", schedule="1f1b")
    assert folded.step_seconds < one.step_seconds
    (note,) = [n for n in folded.data.notes if n.startswith("METIS's parts as 3 stages on dev")]
    assert "one stage a device takes" in note
    loads = [0.0, 0.0]
    for stage in folded.stages:
        loads[stage.rank] += stage.seconds
    assert folded.bottleneck_seconds == pytest.approx(max(loads))
    assert folded.lower_bound_seconds <= folded.bottleneck_seconds


def test_auto_leaves_a_stage_a_device_where_that_is_faster() -> None:
    x = torch.zeros(2, 8)
    plan = stagecut.partition(Chain(8), 2, (x,), schedule="folded", n_microbatches=4)
    assert plan.data.device_of_stage == (0, 1)
    assert any("one stage a device takes" in note for note in plan.data.notes)
    other = stagecut.partition(Chain(8), 2, (x,), n_microbatches=4)
    assert plan.step_seconds <= other.step_seconds
    assert [trial.method for trial in plan.data.trials].count("folded") == 1


def test_a_folded_plan_is_read_explained_and_edited(tmp_path: Path) -> None:
    plan = planned(rows=8, size=64)
    plan.save(tmp_path / "plan.json")
    again = stagecut.Plan.load(tmp_path / "plan.json")
    assert again.data == plan.data
    assert again.timeline().step_seconds == plan.step_seconds
    assert "stage 1 of 0 to 2" in again.explain(1)
    with pytest.raises(PlanError, match="leaves no pipeline"):
        again.move("last", stage=0)
    held = {stages for _, stages in again.to_networkx().nodes(data="stages")}
    assert held == {(0,), (1,), (2,)}
    edited = again.move("up.1.first", stage=2)
    assert edited.data.device_of_stage == (0, 1, 0)
    on_first = edited.stages[0].seconds + edited.stages[2].seconds
    assert edited.bottleneck_seconds == pytest.approx(max(on_first, edited.stages[1].seconds))


def test_what_does_not_go_with_it_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r'method is \'dp\'; use "metis", or "auto"'):
        planned(method="dp")
    with pytest.raises(ArgumentError, match="leave the pins out"):
        planned(pins={"middle": 0})
    with pytest.raises(ArgumentError, match="the search weighs built-in schedules"):
        planned(batch_size=16)


def test_without_training_the_schedule_is_that_of_inference() -> None:
    assert planned(training=False, method="auto").data.schedule == "forward"
