"""Plans from measured times."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import stagecut
from stagecut.ir.device import Cluster, Link
from stagecut.ir.devices import device
from stagecut.ir.errors import StagecutError
from stagecut.passes import Profile, save_profile
from tests.cases.models import Chain

X = torch.randn(2, 8)


def test_measured_times_are_kept_and_carried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan = stagecut.partition(Chain(), 2, (X,), cluster="CPU", cost="measured")
    profile = tmp_path / "stagecut" / "profile.json"
    assert profile.exists()
    origins = {op.cost.origin for op in plan.data.graph.ops if op.cost is not None}
    assert "measured" in origins
    again = stagecut.partition(Chain(), 2, (X,), cluster="CPU", cost=profile)
    assert [s.seconds for s in again.stages] == [s.seconds for s in plan.stages]
    roofline = stagecut.partition(Chain(), 2, (X,), cluster="CPU")
    assert [s.seconds for s in roofline.stages] != [s.seconds for s in plan.stages]


def test_a_step_ends_with_the_optimizer_s() -> None:
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    x = torch.randn(2, 256)
    with_step, without = (
        stagecut.partition(model, 2, (x,), cluster="A100", optimizer=optimizer)
        for optimizer in ("adamw", "none")
    )
    seconds = [stage.optimizer_seconds for stage in with_step.stages]
    held = [sum(p.numel() for p in model[i : i + 2].parameters()) for i in (0, 2)]
    card = device("A100")
    for took, elements in zip(seconds, held, strict=True):
        moved = 21 * 4 * elements / card.attainable_bytes_per_second
        assert moved < took < moved + 20 * card.launch_seconds
    assert [s.optimizer_seconds for s in without.stages] == [0.0, 0.0]
    tail = with_step.timeline().tail
    assert [span.kind for span in tail] == ["optimizer"] * 2
    assert [s.end_seconds - s.start_seconds for s in tail] == pytest.approx(seconds)
    ended = [s for s in without.timeline().spans if s.device == 0][-1].end_seconds
    assert with_step.step_seconds == pytest.approx(ended + seconds[0])
    evaluated = stagecut.partition(model, 2, (x,), cluster="A100", training=False)
    assert not any(stage.optimizer_seconds for stage in evaluated.stages)


def test_moving_a_module_keeps_measured_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    plan = stagecut.partition(model, 2, (torch.randn(2, 64),), cluster="CPU", cost="measured")
    timed = dict(plan.data.step_timings)
    assert len(timed) == 8
    before = sum(stage.optimizer_seconds for stage in plan.stages)
    assert before == pytest.approx(sum(timed.values()))
    moved = plan.move("1", stage=1)
    assert moved.stages[0].optimizer_seconds == pytest.approx(timed["0.weight"] + timed["0.bias"])


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
@pytest.mark.parametrize("n_microbatches", [1, 2, 6])
def test_the_timeline_s_peak_is_the_table_s(schedule: str, n_microbatches: int) -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    for rows in (2, 4096):  # the optimizer's step is the peak, then a backward
        plan = stagecut.partition(
            model, 2, (torch.randn(rows, 8),), cluster="CPU", schedule=schedule,
            n_microbatches=n_microbatches,
        )  # fmt: skip
        totals = [stage.memory.total for stage in plan.stages]
        assert list(plan.timeline().peak_bytes) == pytest.approx(totals)


class Gate(nn.Module):
    """Branches on data: it runs as it is, and fake tensors cannot run it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if y.sum() > 0:
            y = y * 2
        return y


class Picky(Gate):
    """Refuses the data that it is timed on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.abs().sum() != 0:
            raise RuntimeError("only zeros, please")
        return super().forward(x)


def test_modules_that_cannot_be_traced_are_measured_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for kind, origin in ((Gate, "measured"), (Picky, "analytic")):
        model = nn.Sequential(kind(), nn.Linear(64, 64), nn.Linear(64, 64))
        plan = stagecut.partition(
            model, 2, (torch.zeros(4, 64),), cluster="CPU", cost="measured", frontend="symbolic"
        )
        (opaque,) = [op for op in plan.data.graph.ops if op.target.startswith("module:")]
        assert opaque.cost is not None and opaque.cost.origin == origin
        assert opaque.cost.forward.seconds > 0
        note = next(n for n in plan.data.notes if n.startswith("Times were measured on CPU"))
        assert note.endswith("by roofline: module:0.") == (origin == "analytic")


def test_measured_times_are_of_one_device(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save_profile(Profile("H100", "2.13.0", 0), path)
    group = Cluster("mixed", (device("H100"), device("T4")), 2, Link(1e-6, 1e11), Link(1e-6, 1e11))
    for cost in ("measured", path):
        with pytest.raises(StagecutError, match="of one device, and the cluster has H100, T4"):
            stagecut.partition(Chain(), 2, (X,), cluster=group, cost=cost)


def test_a_profile_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(StagecutError, match="roofline, measured, or a profile's path"):
        stagecut.partition(Chain(), 2, (X,), cost="fast")
    (tmp_path / "profile.json").write_text("{}")
    with pytest.raises(StagecutError):
        stagecut.partition(Chain(), 2, (X,), cost=tmp_path / "profile.json")
