from __future__ import annotations

import json
import os
from pathlib import Path
from typing import get_args

import pytest

from stagecut.cli import solve as cli
from stagecut.partitioner import workloads
from stagecut.partitioner.workloads import solve_file
from tests.cli.support import ROOT, Shell

CHAIN = {
    "stagecut": 1,
    "nodes": [{"id": name, "forward_seconds": 1.0} for name in "abcd"],
    "values": [{"from": a, "to": [b], "bytes": 0} for a, b in ("ab", "bc", "cd")],
}


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(CHAIN))
    return path


def test_the_answer_as_json(shell: Shell, chain: Path) -> None:
    answer = json.loads(shell.run("solve", str(chain), "--devices", "2", "--json"))
    assert answer["assignment"] == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert answer["bottleneck"] == 2.0
    assert answer["optimal"] is True
    assert answer["gap"] == pytest.approx(0, abs=1e-6)
    assert answer["seconds"] >= 0


def test_what_a_solver_prints_stays_out_of_the_answer(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, chain: Path
) -> None:
    def noisy(*args: object) -> object:
        os.write(1, b"HighsMipSolverData::")
        return solve_file(*args)

    monkeypatch.setattr(workloads, "solve_file", noisy)
    cli.solve(chain, 2, as_json=True)
    out, err = capfd.readouterr()
    assert json.loads(out)["bottleneck"] == 2.0
    assert "Highs" in err


def test_the_answer_for_a_reader(shell: Shell, chain: Path) -> None:
    out = shell.run("solve", str(chain), "--devices", "2")
    assert "4 nodes in 2 stages" in out
    assert "optimal: proved" in out


def test_what_cannot_be_read_is_refused(shell: Shell, tmp_path: Path, chain: Path) -> None:
    assert "cannot read" in shell.refused("solve", str(tmp_path / "none.json"), "--devices", "2")
    (tmp_path / "empty.json").write_text("{}")
    assert "stagecut" in shell.refused("solve", str(tmp_path / "empty.json"), "--devices", "2")
    assert "magic" in shell.refused("solve", str(chain), "--devices", "2", "--method", "magic")
    (tmp_path / "notes.md").write_text("# Not a profile\n")
    told = shell.refused("solve", str(tmp_path / "notes.md"), "--devices", "2")
    assert "neither JSON nor a profile" in told


def test_the_help_names_the_format_s_description(shell: Shell) -> None:
    told = " ".join(shell.run("solve", "--help").replace("│", " ").split())
    assert "docs/problem-format.md" in told
    assert "in our own format exactly as many" in told
    assert (ROOT / "docs/problem-format.md").is_file()


def test_all_faults_of_our_own_format_are_shown(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    nodes = [{"id": "a", "forward_second": 1}, {"id": "b"}]
    path.write_text(
        json.dumps({"stagecut": 1, "nodes": nodes, "values": [{"from": "a", "to": "b"}]})
    )
    told = shell.refused("solve", str(path), "-n", "2")
    assert "2 faults" in told and "forward_seconds" in told and 'to is "b"; give a list' in told
    path.write_text("[1, 2]")
    assert "is JSON but a list" in shell.refused("solve", str(path), "-n", "2")


def test_other_files_are_recognised(shell: Shell, tmp_path: Path) -> None:
    plan, profile, stages = tmp_path / "plan.json", tmp_path / "times.json", tmp_path / "stages"
    shell.run("plan", "tests.cli.tiny:mlp", "-n", "2", "--save", str(plan))
    shell.run("profile", "tests.cli.tiny:mlp", "-o", str(profile))
    shell.run("export", "tests.cli.tiny:mlp", "-n", "2", "-o", str(stages))
    weights = next(stages.glob("*.safetensors"))
    for name, seems, taker in (
        (plan, "a saved plan", "stagecut.Plan.load("),
        (profile, "a profile of times", "--cost"),
        (stages, "an export folder", "stagecut run"),
        (weights, "weights", "stagecut.load_stage"),
        ("tests/cli/tiny.py", "Python code", "stagecut plan tests.cli.tiny:FUNCTION"),
        ("here.toml", "a cluster", "--cluster here.toml"),
        ("hf:gpt2", "the name of a model", "stagecut plan hf:gpt2"),
    ):
        told = shell.refused("solve", str(name), "-n", "2").replace(" ", "")
        for words in (f"is {seems}, and solve takes a partitioning problem", taker):
            assert words.replace(" ", "") in told
    problem = shell.refused("plan", str(plan), "-n", "2").replace(" ", "")
    assert "Itisasavedplan" in problem


def test_a_problem_is_sent_to_solve(shell: Shell, chain: Path) -> None:
    told = shell.refused("plan", str(chain), "-n", "2").replace(" ", "")
    assert "Itisapartitioningproblem,forstagecutsolve" in told


def test_the_formats_are_those_that_are_read() -> None:
    assert get_args(cli.Format) == get_args(workloads.Format)
