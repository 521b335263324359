"""Plans and stages on disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import stagecut
from stagecut.ir.errors import PlanError
from tests.cases.models import Buffers, Tied
from tests.cases.table import built
from tests.support.ranks import results, run_ranks

IDS = torch.zeros(2, 5, dtype=torch.long)


@pytest.fixture
def tied() -> nn.Module:
    torch.manual_seed(0)
    return Tied()


def test_a_plan_comes_back_from_its_file(tied: nn.Module, tmp_path: Path) -> None:
    plan = stagecut.partition(tied, 3, (IDS,))
    plan.save(tmp_path / "plan.json")
    loaded = stagecut.Plan.load(tmp_path / "plan.json")
    assert loaded.data == plan.data
    assert loaded.programs() == plan.programs()
    assert str(loaded) == str(plan)


def test_stages_run_on_torch_alone(tied: nn.Module, tmp_path: Path) -> None:
    plan = stagecut.partition(tied, 2, (IDS,), training=False)
    plan.export(tmp_path / "stages", tied)
    code = """
import sys, torch
from safetensors.torch import load_file
from stage_0 import Stage0
from stage_1 import Stage1
value = torch.load("ids.pt")
for k, kind in enumerate((Stage0, Stage1)):
    stage = kind()
    stage.load_state_dict(load_file(f"stage_{k}.safetensors"), strict=False)
    with torch.no_grad():
        (value,) = stage(value)
assert "stagecut" not in sys.modules
torch.save(value, "out.pt")
"""
    torch.save(IDS, tmp_path / "stages" / "ids.pt")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "stages", check=True)
    assert torch.equal(torch.load(tmp_path / "stages" / "out.pt"), tied.eval()(IDS))


def test_a_stage_loads_with_its_weights(tied: nn.Module, tmp_path: Path) -> None:
    stagecut.partition(tied, 2, (IDS,)).export(tmp_path / "stages", tied)
    states = [stagecut.load_stage(tmp_path / "stages", k).state_dict() for k in (0, 1)]
    assert set(states[0]) | set(states[1]) == set(tied.state_dict())
    for state in states:
        for name, value in state.items():
            assert torch.equal(value, tied.state_dict()[name])
    with pytest.raises(PlanError, match="has stages 0 to 1, not 5"):
        stagecut.load_stage(tmp_path / "stages", 5)


def test_a_folder_runs_without_the_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Buffers(), torch.randn(4, 8)
    stagecut.partition(model, 2, (x[:2],)).export(tmp_path / "stages", model)
    pipe = stagecut.pipeline(tmp_path / "stages", runtime="local")
    torch.testing.assert_close(pipe(x), model(x))


def from_folder(rank: int, folder: str) -> float:
    case = built("tied")
    pipe = stagecut.pipeline(folder, loss_fn=case.loss)
    torch.testing.assert_close(pipe(*case.args), case.model(*case.args))
    return float(pipe.train_step(*case.args))


def test_a_folder_runs_on_two_processes(tmp_path: Path) -> None:
    case = built("tied")
    folder = tmp_path / "stages"
    stagecut.partition(case.model, 2, (case.args[0][:2],)).export(folder, case.model)
    losses = results(run_ranks(2, from_folder, str(folder)))
    want = case.loss(case.model(*case.args)).item()  # type: ignore[misc]
    assert losses == pytest.approx([want, want], rel=1e-6)


def test_only_the_weights_of_a_stage_are_in_its_file(tied: nn.Module, tmp_path: Path) -> None:
    plan = stagecut.partition(tied, 2, (IDS,))
    plan.export(tmp_path / "stages", tied)
    for stage in plan.programs().stages:
        held = load_file(tmp_path / "stages" / f"stage_{stage.index}.safetensors")
        assert set(held) == {weight.name for weight in stage.weights}


def test_an_export_is_the_same_bytes_again(tied: nn.Module, tmp_path: Path) -> None:
    for name in ("first", "second"):
        stagecut.partition(tied, 2, (IDS,)).export(tmp_path / name, tied)
    for k in (0, 1):
        for ending in ("py", "safetensors"):
            first, second = (tmp_path / n / f"stage_{k}.{ending}" for n in ("first", "second"))
            assert first.read_bytes() == second.read_bytes()


def test_tampered_folders_are_refused(tied: nn.Module, tmp_path: Path) -> None:
    folder = tmp_path / "stages"
    plan = stagecut.partition(tied, 2, (IDS,))
    plan.export(folder, tied)
    source = (folder / "stage_1.py").read_text()
    (folder / "stage_1.py").write_text(source + "\n")
    with pytest.raises(PlanError, match=r"stage_1.py was changed"):
        stagecut.load_stage(folder, 1)
    (folder / "stage_1.py").write_text(source)
    (folder / "stage_1.safetensors").write_bytes(b"nothing")
    with pytest.raises(PlanError, match="cannot be read"):
        stagecut.load_stage(folder, 1)
    (folder / "stage_1.safetensors").unlink()
    with pytest.raises(PlanError, match=r"stage_1.safetensors is missing"):
        stagecut.pipeline(folder, runtime="local")
    plan.export(folder, tied)
    stagecut.load_stage(folder, 1)


def test_what_is_no_export_is_not_overwritten(tied: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    plan = stagecut.partition(tied, 2, (IDS,))
    with pytest.raises(PlanError, match="no export folder"):
        plan.export(tmp_path / "mine", tied)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_weights_without_values_are_not_exported(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = Tied()
    plan = stagecut.partition(model, 2, (IDS,))
    with pytest.raises(PlanError, match="meta device"):
        plan.export(tmp_path / "stages", model)
    assert not (tmp_path / "stages").exists()
