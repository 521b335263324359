from __future__ import annotations

import json
from pathlib import Path

import pytest

from stagecut.ir.plan import load_plan
from tests.cli.support import Shell, stagecut

TINY = "tests.cli.tiny"


def test_a_plan_as_tables() -> None:
    result = stagecut("plan", f"{TINY}:mlp", "-n", "2")
    assert result.returncode == 0, result.stderr
    for words in ("2 stages", "assumed", "memory at the peak", "lower bound", "device 1"):
        assert words in result.stdout


def test_a_plan_as_json_and_in_a_file(shell: Shell, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    options = ("-n", "2", "--cluster", "H100", "--schedule", "gpipe", "-m", "6", "--method", "dp")
    out = shell.run("plan", f"{TINY}:mlp", *options, "--json", "--save", str(saved))
    figures, plan = json.loads(out), load_plan(saved.read_text())
    assert figures["schedule"] == plan.schedule == "gpipe"
    assert figures["n_microbatches"] == plan.n_microbatches == 6
    assert figures["method"] == "dp"
    assert figures["cluster"]["devices"][0]["name"] == "H100"
    assert figures["gap"] == plan.gap
    assert [s["seconds"] for s in figures["stages"]] == [s.seconds for s in plan.stages]
    assert [s["memory"]["total"] for s in figures["stages"]] == [
        s.memory.total for s in plan.stages
    ]


def test_a_named_model_is_planned_without_weights(shell: Shell) -> None:
    figures = json.loads(shell.run("plan", "hf:gpt2", "-n", "4", "--length", "32", "--json"))
    assert len(figures["stages"]) == 4
    weights = sum(stage["memory"]["weights"] for stage in figures["stages"])
    assert weights >= 124_439_808 * 4  # GPT-2's parameters, in float32


def test_the_dtype_of_products_is_an_option(shell: Shell) -> None:
    options = ("plan", "hf:gpt2", "-n", "2", "--length", "512", "--cluster", "A100")
    plain = json.loads(shell.run(*options, "--json"))
    fast = json.loads(shell.run(*options, "--dtype", "tf32", "--json"))
    assert fast["bottleneck_seconds"] < plain["bottleneck_seconds"] / 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("untraceable", "-n", "2"), ["TraceError", "tiny.py:", "y.sum() > 0"]),
        (("without_example", "-n", "2"), ["ArgumentError", "needs an example"]),
        (("mlp", "-n", "50"), ["50 stages"]),
        (("mlp", "-n", "2", "--memory-limit", "1KiB"), ["InfeasibleError", "stage"]),
        (("mlp", "-n", "2", "--memory-limit", "lots"), ["memory_limit is 'lots'", "24GiB"]),
        (("mlp", "-n", "2", "--cluster", "abacus"), ["abacus", "H100"]),
        (("mlp", "-n", "2", "--schedule", "soon"), ["soon", "1f1b"]),
        (("mlp", "-n", "2", "--method", "magic"), ["magic", "metis"]),
        (("mlp", "-n", "2", "--dtype", "int8"), ["int8", "tf32", "autocast"]),
        (("absent", "-n", "2"), ["has no function 'absent'", "mlp"]),
    ],
)
def test_bad_input_is_a_short_panel(
    shell: Shell, arguments: tuple[str, ...], words: list[str]
) -> None:
    name, *options = arguments
    text = shell.refused("plan", f"{TINY}:{name}", *options)
    assert not [word for word in words if word not in text], text


def test_nothing_is_saved_when_planning_fails(shell: Shell, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    shell.refused("plan", f"{TINY}:mlp", "-n", "50", "--save", str(saved))
    assert not saved.exists()


def test_numbers_out_of_range_are_a_usage_error() -> None:
    result = stagecut("plan", f"{TINY}:mlp", "-n", "0")
    assert result.returncode == 2
    assert "--devices" in result.stderr
