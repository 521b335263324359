from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from stagecut.cli.compare import error_text, figures, optimizer_seconds
from stagecut.cli.peak import Watched
from stagecut.ir.clusterfile import load_cluster
from stagecut.ir.device import Link
from stagecut.ir.devices import device
from stagecut.ir.timeline import Spans, Timeline, TransferSpans
from stagecut.links import cluster_of, fitted_link
from stagecut.passes import load_profile
from tests.cli.support import Shell, stagecut

TINY = "tests.cli.tiny"


def test_a_profile_is_planned_with(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    assert "5 ops and optimizer steps timed, 5 in all" in shell.run(
        "profile", f"{TINY}:mlp", "-o", str(path)
    )
    options = ("plan", f"{TINY}:mlp", "-n", "2", "--cluster", "CPU", "--json")
    roofline = json.loads(shell.run(*options))
    document = json.loads(path.read_text())
    for timing in document["timings"].values():
        timing["forward"] = 0.25
    path.write_text(json.dumps(document))
    planned = json.loads(shell.run(*options, "--cost", str(path)))
    assert sum(s["forward_seconds"] for s in planned["stages"]) == pytest.approx(8 * 0.25)
    assert sum(s["forward_seconds"] for s in roofline["stages"]) < 0.25
    assert sum(s["optimizer_seconds"] for s in planned["stages"]) == pytest.approx(8 * 0.25)
    assert any(note.startswith("Times were measured on CPU (") for note in planned["notes"])
    text = shell.run(*options[:-1], "--cost", str(path))
    assert "100.0% of the ops' time measured" in " ".join(text.split())
    assert "times by roofline" in shell.run(*options[:-1])


def test_a_profile_keeps_what_it_has(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    shell.run("profile", f"{TINY}:mlp", "-o", str(path))
    before = load_profile(path).timings
    assert "0 ops and optimizer steps timed" in shell.run("profile", f"{TINY}:mlp", "-o", str(path))
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
    rows = ("forward", "backward", "send", "idle, a step", "optimizer, a step", "peak memory")
    for words in rows:
        assert sum(words in line for line in lines) == 2, words
    errors = [float(line.split()[-1].rstrip("%")) for line in lines if "peak memory" in line]
    assert errors == pytest.approx([0, 0], abs=25)  # of a few KiB, of which messages are a part
    assert "(median of 2)" in lines[-1]


def test_links_are_measured_and_planned_with(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    result = stagecut("profile", "--links", "-n", "3", "-o", str(path))
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("GB/s") == 3 and f"--cluster {path}" in result.stdout
    found = load_cluster(path)
    assert [d.name for d in found.devices] == ["CPU"] * 3
    for pair in ((0, 1), (0, 2), (1, 2)):
        link = found.link(*pair)
        assert 1e-6 < link.latency_seconds < 0.1 and 1e7 < link.bytes_per_second < 1e12
        assert link.source == f"measured by gloo between ranks {pair[0]} and {pair[1]}"
    options = ("plan", f"{TINY}:mlp", "-n", "3", "--cluster", str(path), "--json")
    figures = json.loads(shell.run(*options))
    assert figures["stages"][0]["send_seconds"] > found.link(0, 1).latency_seconds


def test_links_of_torchrun_s_ranks(tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    what = ["-m", "stagecut.cli", "profile", "--links", "-o", str(path)]
    done = subprocess.run(
        [sys.executable, *command, *what], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("GB/s") == 1
    assert len(load_cluster(path).devices) == 2 and not load_cluster(path).pairs


def test_links_and_models_are_not_mixed(shell: Shell) -> None:
    assert "leave MODEL out" in shell.refused("profile", f"{TINY}:mlp", "--links")
    assert "name a MODEL" in shell.refused("profile", "-n", "2")


def test_a_line_is_fitted_to_messages() -> None:
    sizes = (1, 1000, 10**6, 10**8)
    link = fitted_link(sizes, [2e-5 + n / 4e9 for n in sizes], "made up")
    assert link.latency_seconds == pytest.approx(2e-5, rel=1e-3)
    assert link.bytes_per_second == pytest.approx(4e9, rel=1e-3)
    flat = fitted_link(sizes, [1e-3, 1e-3, 1e-3, 0.9e-3], "made up")
    assert flat.latency_seconds >= 0 and flat.bytes_per_second > 0


def test_nodes_of_a_measured_cluster() -> None:
    near, far, farther = Link(1e-6, 1e10), Link(1e-4, 1e9), Link(1e-4, 5e8)
    links = {(0, 1): near, (2, 3): near, (0, 2): far, (0, 3): far, (1, 2): far, (1, 3): farther}
    made = cluster_of([device("CPU")] * 4, ["a", "a", "b", "b"], links)
    assert (made.devices_per_node, made.inside, made.between) == (2, near, farther)
    assert all(made.link(*pair) == link for pair, link in links.items())


def test_a_run_keeps_to_a_cluster_and_a_limit(shell: Shell) -> None:
    options = ("run", f"{TINY}:mlp", "-n", "2")
    assert "stage" in shell.refused(*options, "--memory-limit", "1KiB")
    assert "abacus" in shell.refused(*options, "--cluster", "abacus")


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
    first, second = figures([timeline], [10.0, 20.0], [0.5, 0.25], recorded=True)
    assert (first.forward, first.backward, first.send, first.idle) == (1.0, 0.0, 0.5, 7.5)
    assert (first.optimizer, second.optimizer) == (0.5, 0.25)
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
    timeline = plan.timeline()
    for peak, total in zip(timeline.peak_bytes, totals, strict=True):
        assert 0.5 * total < peak <= total  # they reach theirs at different times
    steps = [sum(s.optimizer_seconds for s in plan.stages if s.rank == r) for r in (0, 1)]
    assert list(optimizer_seconds(timeline)) == pytest.approx(steps)
    assert min(steps) > 0


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
