"""Plans from measured times."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import stagecut
from stagecut.ir.errors import StagecutError
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


def test_a_profile_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(StagecutError, match="roofline, measured, or a profile's path"):
        stagecut.partition(Chain(), 2, (X,), cost="fast")
    (tmp_path / "profile.json").write_text("{}")
    with pytest.raises(StagecutError):
        stagecut.partition(Chain(), 2, (X,), cost=tmp_path / "profile.json")
