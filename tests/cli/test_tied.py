from __future__ import annotations

from pathlib import Path

from stagecut.ir.plan import load_plan
from tests.cli.support import Shell

CODER = "tests.face.test_colocated:example"


def test_users_of_a_tied_weight_are_kept_together(shell: Shell, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    options = ("-n", "2", "--tied", "colocate", "--cluster", "T4", "--save", str(saved))
    told = shell.run("plan", CODER, *options)
    assert 'as tied="colocate" asks' in " ".join(told.split())
    assert load_plan(saved.read_text()).tied == "colocate"


def test_another_word_is_refused(shell: Shell) -> None:
    told = shell.refused("plan", CODER, "-n", "2", "--tied", "merge")
    assert "tied is 'merge'; choose replicate or colocate" in told


def test_an_export_is_planned_so_too(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "stages"
    shell.run("export", CODER, "-n", "2", "--tied", "colocate", "-o", str(folder))
    assert load_plan((folder / "plan.json").read_text()).tied == "colocate"
