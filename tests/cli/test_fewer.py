from __future__ import annotations

from pathlib import Path

from stagecut.ir.plan import load_plan
from tests.cli.support import Shell

TINY = ("tests.cli.tiny:mlp", "-n", "4", "--cluster", "T4")


def test_devices_are_left_out_where_that_is_faster(shell: Shell, tmp_path: Path) -> None:
    saved, folder = tmp_path / "plan.json", tmp_path / "stages"
    shell.run("plan", *TINY, "--save", str(saved))
    assert len(load_plan(saved.read_text()).stages) == 4
    shell.run("plan", *TINY, "--allow-fewer", "--save", str(saved))
    fewer = len(load_plan(saved.read_text()).stages)
    assert fewer < 4
    shell.run("export", *TINY, "--allow-fewer", "-o", str(folder))
    assert len(load_plan((folder / "plan.json").read_text()).stages) == fewer
