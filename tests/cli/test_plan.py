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


def test_a_cut_is_explained(shell: Shell) -> None:
    told = shell.run("plan", f"{TINY}:mlp", "-n", "2", "--explain", "1")
    assert told.startswith("stage 1 of 0 to 1 on")
    assert "0 → 1" in told and "lowers the bottleneck" in told


@pytest.mark.parametrize("schedule, last", [("1f1b", 1), ("interleaved", 3)])
def test_a_stage_that_no_plan_has_is_refused_before_planning(
    shell: Shell, schedule: str, last: int
) -> None:
    told = shell.refused(
        "plan", "none:such", "-n", "2", "--schedule", schedule, "--explain", str(last + 1)
    )
    assert f"no stage {last + 1}; stages are 0 to {last} with" in told
    told = shell.refused(
        "plan", "none:such", "-n", "2", "--schedule", schedule, "--explain", str(last)
    )
    assert "there is no module" in told  # the next that is wrong


def test_sizes_are_of_named_models_alone(shell: Shell, tmp_path: Path) -> None:
    model = f"{TINY}:mlp"
    for command in (
        ("plan", model, "-n", "2"),
        ("run", model, "-n", "2"),
        ("profile", model, "-o", str(tmp_path / "x.json")),
        ("export", model, "-n", "2", "-o", str(tmp_path / "stages")),
    ):
        told = shell.refused(*command, "--rows", "4", "--length", "64").replace(" ", "")
        assert "--rowsand--lengthisforhf:modelsalone" in told
        assert "bringsitsownexample" in told
    (tmp_path / "plan.json").write_text("{}")
    told = shell.refused("run", str(tmp_path), "-n", "2", "--rows", "1")
    assert "was exported with its rows" in told


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


def test_the_optimizer_s_state_is_an_option(shell: Shell) -> None:
    options = ("plan", f"{TINY}:mlp", "-n", "2", "--json", "--optimizer")
    states = [
        sum(s["memory"]["optimizer"] for s in json.loads(shell.run(*options, name))["stages"])
        for name in ("sgd", "momentum", "adamw")
    ]
    assert states == [0, states[1], 2 * states[1]] and states[1] == 4 * (8 * 8 + 8) * 4
    assert "adam8bit" in shell.refused(*options, "lion")


def test_one_row_is_an_example_too(shell: Shell) -> None:
    options = ("plan", "hf:gpt2", "-n", "2", "--length", "32", "--json")
    one, two = (json.loads(shell.run(*options, "--rows", rows)) for rows in ("1", "2"))
    assert not [note for note in one["notes"] if "estimated" in note]
    flops = [sum(s["flops_forward"] for s in plan["stages"]) for plan in (one, two)]
    assert flops[1] == 2 * flops[0]


def test_what_is_auto_is_searched_for(shell: Shell) -> None:
    options = ("plan", f"{TINY}:mlp", "-n", "4", "--cluster", "A100", "--json")
    auto = ("--batch-size", "16", "--replicas", "auto", "--schedule", "auto", "-m", "auto")
    found = json.loads(shell.run(*options, *auto))
    assert len({(a["schedule"], a["replicas"]) for a in found["alternatives"]}) > 2
    best = found["alternatives"][0]
    assert (found["replicas"], found["n_microbatches"]) == (
        best["replicas"],
        best["n_microbatches"],
    )
    fixed = json.loads(shell.run(*options, "--batch-size", "16", "--replicas", "2", "-m", "4"))
    assert (fixed["replicas"], fixed["n_microbatches"], len(fixed["stages"])) == (2, 4, 2)
    assert "batch_size" in shell.refused(*options[:-1], "--replicas", "auto")


def test_run_trains_and_refuses_a_schedule_of_inference(shell: Shell) -> None:
    said = shell.refused("run", f"{TINY}:mlp", "-n", "2", "--schedule", "forward")
    assert "run trains" in said


def test_a_cluster_file_is_planned_for(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'devices = ["A100", "T4"]\n[inside]\nlatency_seconds = 0.25\nbytes_per_second = 1e9\n'
    )
    options = ("plan", f"{TINY}:mlp", "-n", "2", "--json", "--cluster", str(path))
    figures = json.loads(shell.run(*options))
    assert [d["name"] for d in figures["cluster"]["devices"]] == ["A100-80GB", "T4"]
    assert figures["stages"][0]["send_seconds"] >= 0.25
    path.write_text("devices = []")
    assert "needs devices" in shell.refused(*options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("untraceable", "-n", "2"), ["TraceError", "tiny.py:", "y.sum() > 0"]),
        (("without_example", "-n", "2"), ["ArgumentError", "needs an example"]),
        (("mlp", "-n", "50"), ["50 stages"]),
        (("mlp", "-n", "2", "--memory-limit", "1KiB"), ["InfeasibleError", "stage"]),
        (("mlp", "-n", "2", "--memory-limit", "lots"), ["memory_limit is 'lots'", "24GiB"]),
        (("mlp", "-n", "2", "--cluster", "abacus"), ["abacus", "H100", "dgx-h100", ".toml"]),
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
    for option, value in (("--devices", "0"), ("--replicas", "0"), ("--microbatches", "few")):
        result = stagecut("plan", f"{TINY}:mlp", "-n", "2", option, value)
        assert result.returncode == 2
        assert option in result.stderr
