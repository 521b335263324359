from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from stagecut.cli.batches import random_batch
from stagecut.cli.rank import mean_loss
from stagecut.ir.plan import load_plan
from tests.cli.support import Shell, stagecut

TINY = "tests.cli.tiny"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "stages"
    result = stagecut("export", f"{TINY}:mlp", "-n", "2", "-o", str(folder))
    assert result.returncode == 0, result.stderr
    assert "stage_1.safetensors" in result.stdout
    return folder


def test_an_export_holds_what_the_readme_says(exported: Path) -> None:
    names = {path.name for path in exported.iterdir()}
    stages = {f"stage_{k}.{kind}" for k in range(2) for kind in ("py", "safetensors")}
    assert names == {"plan.json", "README.md", *stages}


def test_an_export_trains(exported: Path) -> None:
    result = stagecut("run", str(exported), "-n", "2", "--steps", "2")
    assert result.returncode == 0, result.stderr
    assert len(_losses(result.stdout)) == 2


def test_a_model_trains_on_its_own_loss(tmp_path: Path) -> None:
    result = stagecut("run", f"{TINY}:own_loss", "-n", "2", "--steps", "3", "-m", "2")
    assert result.returncode == 0, result.stderr
    losses = _losses(result.stdout)
    assert len(losses) == 3
    assert 1.0 < losses[0] < 5.0  # ln 11 is 2.4: a cross-entropy, no mean square


def test_stages_import_classes_where_that_is_allowed(shell: Shell, tmp_path: Path) -> None:
    options = ("export", f"{TINY}:branching", "-n", "2", "-o", str(tmp_path / "stages"))
    assert "cannot be traced" in shell.refused(*options, "--frontend", "export")
    assert "allow_imports" in shell.refused(*options)
    assert stagecut(*options, "--allow-imports").returncode == 0
    run = ("run", str(tmp_path / "stages"), "-n", "2", "--steps", "1")
    result = stagecut(*run, "--allow-imports")
    assert result.returncode == 0, result.stderr
    assert len(_losses(result.stdout)) == 1


def test_a_run_with_the_wrong_number_of_processes_is_refused(shell: Shell, exported: Path) -> None:
    text = shell.refused("run", str(exported), "-n", "3", "--steps", "1")
    assert "was exported for 2 devices; run it with -n 2" in text


def test_a_run_shows_what_failed_in_a_process(shell: Shell, exported: Path, tmp_path: Path) -> None:
    """A stage whose code is changed to raise ends every process, with its own words."""
    broken = tmp_path / "broken"
    shutil.copytree(exported, broken)
    (broken / "stage_1.safetensors").write_bytes(b"not weights")
    status = stagecut("run", str(broken), "-n", "2", "--steps", "1")
    assert status.returncode == 1
    assert "stage_1.safetensors" in status.stderr


def test_a_failed_export_leaves_an_existing_folder_alone(shell: Shell, exported: Path) -> None:
    before = {path.name: path.read_bytes() for path in exported.iterdir()}
    shell.refused("export", f"{TINY}:mlp", "-n", "50", "-o", str(exported))
    assert {path.name: path.read_bytes() for path in exported.iterdir()} == before


def test_random_batches_have_the_rows_of_all_micro_batches(exported: Path) -> None:
    graph = load_plan((exported / "plan.json").read_text()).graph
    (tensor,) = random_batch(graph, {}, n_microbatches=3, seed=0).values()
    assert tensor.shape == (6, 8)
    (again,) = random_batch(graph, {}, n_microbatches=3, seed=0).values()
    assert torch.equal(tensor, again)


def test_the_loss_is_the_models_own_or_a_mean_square() -> None:
    assert mean_loss({"loss": torch.tensor(5.0), "logits": torch.ones(3)}) == 5.0
    assert mean_loss((torch.full((2,), 3.0), torch.arange(4))) == 9.0


def _losses(stdout: str) -> list[float]:
    rows = [line.split() for line in stdout.splitlines() if line[:4].strip().isdigit()]
    return [float(row[1]) for row in rows]
