from __future__ import annotations

from pathlib import Path

from stagecut.ir.clusterfile import dump_cluster
from stagecut.ir.plan import load_plan
from tests.cli.support import Shell
from tests.face.test_fewer import SLOW, linked


def test_devices_are_left_out_where_that_is_faster(shell: Shell, tmp_path: Path) -> None:
    slow, saved, folder = tmp_path / "slow.toml", tmp_path / "plan.json", tmp_path / "stages"
    slow.write_text(dump_cluster(linked(4, SLOW)))
    wide = ("tests.cli.tiny:wide", "-n", "4", "--cluster", str(slow), "--microbatches", "8")
    told = shell.run("plan", *wide, "--save", str(saved))
    assert "Fewer devices would be faster" in " ".join(told.split())
    assert len(load_plan(saved.read_text()).stages) == 4
    shell.run("plan", *wide, "--allow-fewer", "--save", str(saved))
    fewer = len(load_plan(saved.read_text()).stages)
    assert fewer < 4
    shell.run("export", *wide, "--allow-fewer", "-o", str(folder))
    assert len(load_plan((folder / "plan.json").read_text()).stages) == fewer
