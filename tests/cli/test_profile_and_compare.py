from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from stagecut.cli.compare import error_text, figures, predicted_peaks
from stagecut.cli.peak import Watched
from stagecut.ir.timeline import Spans, Timeline, TransferSpans
from stagecut.passes import load_profile
from tests.cli.support import Shell, stagecut

TINY = "tests.cli.tiny"


def test_a_profile_is_planned_with(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    assert "3 ops timed, 3 in all" in shell.run("profile", f"{TINY}:mlp", "-o", str(path))
    options = ("plan", f"{TINY}:mlp", "-n", "2", "--cluster", "CPU", "--json")
    roofline = json.loads(shell.run(*options))
    document = json.loads(path.read_text())
    for timing in document["timings"].values():
        timing["forward"] = 0.25
    path.write_text(json.dumps(document))
    planned = json.loads(shell.run(*options, "--cost", str(path)))
    assert sum(s["forward_seconds"] for s in planned["stages"]) == pytest.approx(8 * 0.25)
    assert sum(s["forward_seconds"] for s in roofline["stages"]) < 0.25


def test_a_profile_keeps_what_it_has(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    shell.run("profile", f"{TINY}:mlp", "-o", str(path))
    before = load_profile(path).timings
    assert "0 ops timed" in shell.run("profile", f"{TINY}:mlp", "-o", str(path))
    shell.run("profile", f"{TINY}:own_loss", "-o", str(path))
    after = load_profile(path).timings
    assert len(after) > len(before)
    assert {name: after[name] for name in before} == dict(before)


def test_a_profile_needs_an_example(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    assert "needs an example" in shell.refused(
        "profile", f"{TINY}:without_example", "-o", str(path)
    )
    assert not path.exists()


def test_a_run_is_compared_with_its_plan() -> None:
    result = stagecut("run", f"{TINY}:mlp", "-n", "2", "--steps", "3", "-m", "4", "--compare")
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if line.strip()]
    for words in ("forward", "backward", "send", "idle, a step", "peak memory"):
        assert sum(words in line for line in lines) == 2, words
    errors = [float(line.split()[-1].rstrip("%")) for line in lines if "peak memory" in line]
    assert errors == pytest.approx([0, 0], abs=25)  # of a few KiB, of which messages are a part
    assert "(median of 2)" in lines[-1]


def test_figures_of_a_timeline() -> None:
    """Two stages, two micro-batches; the second activation finds its receiver busy."""
    timeline = Timeline(
        "gpipe", (0, 1), 2, 2,
        spans=_spans([
            (0, 0, 0, "F", 0.0, 1.0), (0, 0, 1, "F", 1.0, 2.0), (1, 1, 0, "F", 1.5, 4.5),
            (1, 1, 1, "F", 4.5, 7.5), (1, 1, 0, "I", 7.5, 8.0), (1, 1, 0, "W", 9.0, 9.5),
        ]),
        transfers=_transfers([(0, 1, "F", 0, 1.0, 1.5), (0, 1, "F", 1, 2.0, 4.5)]),
        tail=(), memory=(), critical_path=(),
    )  # fmt: skip
    first, second = figures([timeline], [10.0, 20.0], recorded=True)
    assert (first.forward, first.backward, first.send, first.idle) == (1.0, 0.0, 0.5, 7.5)
    assert (second.forward, second.backward, second.send) == (3.0, 1.0, None)
    assert (first.peak_bytes, second.peak_bytes) == (10.0, 20.0)


def test_an_error_is_relative_to_what_was_measured() -> None:
    assert error_text(1.5, 1.0) == "+50.0%"
    assert error_text(1.0, 2.0) == "-50.0%"
    assert error_text(1.0, 0.0) == error_text(1.0, None) == error_text(None, 1.0) == "-"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU's allocator is asked instead")
def test_a_peak_counts_what_is_alive_at_once() -> None:
    held, ignored = torch.zeros(100), torch.zeros(1000)
    with Watched([held], [ignored]) as watched:
        for _ in range(3):
            made = held.add(1)
            del made
        ignored.view(10, 100).add_(1)
        pair = held * 2, held[:50].clone()
    assert len(pair) == 2
    assert watched.peak_bytes == 4 * (100 + 100 + 50)


def test_the_stages_of_a_device_share_its_memory() -> None:
    import stagecut as face
    from tests.cli.tiny import mlp

    model, args = mlp()
    plan = face.partition(model, 2, args, schedule="interleaved", cluster="CPU", n_microbatches=4)
    assert plan.n_stages == 4
    totals = [sum(s.memory.total for s in plan.stages if s.rank == r) for r in (0, 1)]
    assert list(predicted_peaks(plan.stages)) == totals


def _spans(rows: list[tuple[int, int, int, str, float, float]]) -> Spans:
    device, stage, microbatch, phase, start, end = zip(*rows, strict=True)
    return Spans(
        *(np.array(column) for column in (device, stage, microbatch)),
        np.array(phase), np.array(start), np.array(end),
    )  # fmt: skip


def _transfers(rows: list[tuple[int, int, str, int, float, float]]) -> TransferSpans:
    source, destination, phase, microbatch, start, end = (
        np.array(column) for column in zip(*rows, strict=True)
    )
    return TransferSpans(source, destination, phase, microbatch, source, destination, start, end)
