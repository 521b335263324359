"""Measured times: what is timed, what the cache keeps, what a plan's costs say of it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stagecut.ir.devices import device
from stagecut.ir.errors import ArgumentError
from stagecut.ir.graph import Graph
from stagecut.ir.text import parse_graph
from stagecut.passes import measuring as module
from stagecut.passes.costs import annotate
from stagecut.passes.measuring import measure, step_timings
from stagecut.passes.profile import Profile, Timing, load_profile, save_profile
from tests.passes.models import case, graph_of

CPU = device("cpu")


def test_every_distinct_op_is_timed_once_and_costs_say_so() -> None:
    _, _, graph = case("block dropout")
    seen: list[tuple[int, int, str]] = []
    profile = measure(graph, CPU, {}, True, progress=lambda *step: seen.append(step))
    assert len(seen) == module._TURNS * len(profile.timings) == seen[0][1]
    assert [done for done, _, _ in seen] == list(range(len(seen)))
    costed = annotate(graph, CPU, {}, True, profile)
    real = [op for op in costed.ops if op.cost and op.cost.forward != type(op.cost.forward)()]
    assert {op.cost.origin for op in real if op.cost} == {"measured"}
    assert all(op.cost.forward.seconds > 0 for op in real if op.cost)
    analytic = annotate(graph, CPU, {}, True)
    for a, b in zip(costed.ops, analytic.ops, strict=True):
        assert a.cost and b.cost
        assert a.cost.forward.flops == b.cost.forward.flops
        assert a.cost.saved == b.cost.saved


@pytest.mark.parametrize("name", ["conv", "frozen", "lstm"])
def test_models_of_every_kind_can_be_timed(name: str) -> None:
    _, _, graph = case(name)
    profile = measure(graph, CPU, {}, True)
    (linear, *_) = [t for key, t in profile.timings.items() if key.startswith("aten.linear")]
    assert linear.forward > 0


class Expanding(nn.Module):
    """A token beside the others, repeated for every row without being copied."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.layer = nn.Parameter(torch.zeros(1, 1, 8)), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.layer(x[:, :1]).expand(-1, 3, -1)
        return torch.cat([self.token.expand(x.shape[0], -1, -1), rows * 2, self.layer(x)], 1)


def test_repeated_tensors_are_timed() -> None:
    graph = graph_of(Expanding(), torch.randn(4, 5, 8))
    profile = measure(graph, CPU, {}, True)
    costed = annotate(graph, CPU, {}, True, profile)
    origins = {
        op.target: op.cost.origin for op in costed.ops if op.cost and op.cost.forward.kernels
    }
    assert origins and set(origins.values()) == {"measured"}
    assert "aten.cat.default" in origins


def test_the_optimizer_s_step_is_timed_for_each_distinct_weight(tmp_path: Path) -> None:
    _, _, graph = case("frozen")
    trainable = {w.name: w.type.hint_shape for w in graph.weights if w.trainable}
    path = tmp_path / "times.json"
    profile = measure(graph, CPU, {}, True, optimizer="adamw", cache=path)
    steps = [name for name in profile.timings if name.startswith("step:")]
    assert len(steps) == len(set(trainable.values()))
    found = dict(step_timings(graph, profile, "adamw"))
    assert trainable.keys() <= found.keys()
    assert all(1e-6 < seconds < 0.1 for seconds in found.values())
    assert step_timings(graph, profile, "sgd") == step_timings(graph, None, "adamw") == ()
    again = measure(graph, CPU, {}, True, optimizer="adamw", cache=path)
    assert again.timings == profile.timings
    other = measure(graph, CPU, {}, True, optimizer="sgd", cache=path)
    assert len(other.timings) == len(profile.timings) + len(steps)
    assert not any(n.startswith("step:") for n in measure(graph, CPU, {}, False).timings)


def test_a_slow_op_takes_its_time() -> None:
    class Sleepy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(0.02)
            return x * 2

    text = """
graph @G(%x: f32[5, 8] {path="x", split=0}) {
  %a: f32[5, 8] = module:inner(%x)
  return (%a)
}
"""
    profile = measure(parse_graph(text), CPU, {"inner": Sleepy()}, True)
    ((_, timing),) = profile.timings.items()
    assert 0.02 <= timing.forward < 0.2


def test_other_work_disturbs_one_turn_and_not_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three turns the second is ten times as slow for every op."""
    _, _, graph = case("mlp")
    calls = {"n": 0}

    def fake(distinct: Any, *others: Any) -> Timing:
        calls["n"] += 1
        slow = 3 < calls["n"] <= 6
        return Timing(10.0, 20.0, 30.0) if slow else Timing(1.0, 2.0, 3.0)

    monkeypatch.setattr(module, "_timed", fake)
    profile = measure(graph, CPU, {}, True)
    assert calls["n"] == 9 and len(profile.timings) == 3
    assert set(profile.timings.values()) == {Timing(1.0, 2.0, 3.0)}


def test_a_frozen_layer_has_no_weight_half() -> None:
    _, _, graph = case("frozen")
    costed = annotate(graph, CPU, {}, True, measure(graph, CPU, {}, True))
    for op in costed.ops:
        if op.target == "aten.linear.default" and op.cost:
            halves = op.cost.backward_input.seconds > 0, op.cost.backward_weight.seconds > 0
            assert halves == {"a": (False, False), "b": (False, True), "c": (True, False),
                              "d": (False, False)}[op.scope]  # fmt: skip


def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    timed: list[str] = []
    original = module._timed

    def spy(distinct: Any, *others: Any) -> Timing | None:
        timed.append(distinct.name)
        return original(distinct, *others)

    monkeypatch.setattr(module, "_timed", spy)
    return timed


def test_the_cache_is_used_by_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed, path = counting(monkeypatch), tmp_path / "times" / "profile.json"
    _, _, graph = case("mlp")
    first = measure(graph, CPU, {}, True, cache=path)
    assert len(timed) == 3 * module._TURNS
    assert measure(graph, CPU, {}, True, cache=path) == first
    assert len(timed) == 3 * module._TURNS
    measure(graph, CPU, {}, False, cache=path)
    assert len(timed) == 6 * module._TURNS  # inference runs other code


@pytest.mark.parametrize(
    "change", [{"device": "another"}, {"torch_version": "0.1"}, {"threads": 999}]
)
def test_another_device_or_torch_makes_the_cache_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    timed, path = counting(monkeypatch), tmp_path / "profile.json"
    _, _, graph = case("mlp")
    profile = measure(graph, CPU, {}, True, cache=path)
    save_profile(replace(profile, **change), path)
    measure(graph, CPU, {}, True, cache=path)
    assert len(timed) == 6 * module._TURNS


def test_what_does_not_fit_keeps_its_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_free_bytes", lambda place: 0)
    _, _, graph = case("mlp")
    profile = measure(graph, CPU, {}, True)
    assert profile.timings == {}
    origins = {op.cost.origin for op in annotate(graph, CPU, {}, True, profile).ops if op.cost}
    assert origins == {"analytic"}


def test_profiles_travel_as_files(tmp_path: Path) -> None:
    profile = Profile("H100", "2.13.0", 0, {"aten.mm.default#12": Timing(1e-3, 2e-3, 0.1 + 0.2)})
    save_profile(profile, tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == profile


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"device": "x", "timings": {"a": {}}}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match="not a profile"):
        load_profile(path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    save_profile(Profile("x", "y", 1), path)
    path.write_text(path.read_text().replace('"stagecut_profile": 1', '"stagecut_profile": 99'))
    with pytest.raises(ArgumentError, match="format 99"):
        load_profile(path)


def test_layers_of_one_shape_share_a_time() -> None:
    def graph(width: int) -> Graph:
        return parse_graph(
            f'graph @G(%x: f32[4, {width}] {{path="x"}}) {{\n'
            f"weight @a: f32[{width}, {width}] parameter trainable\n"
            f"weight @b: f32[{width}, {width}] parameter trainable\n"
            f"%p: f32[4, {width}] = aten.exp.default(%x)\n"
            f"%q: f32[4, {width}] = aten.linear.default(%p, @a)\n"
            f"%r: f32[4, {width}] = aten.linear.default(%q, @b)\n"
            f"%s: f32[4, {width}] = aten.linear.default(%r, @b)\nreturn (%s)\n}}\n"
        )

    names = set(measure(graph(8), CPU, {}, True).timings)
    assert len(names) == 3  # exp; the first linear, whose input needs no gradient; the others
    assert not names & set(measure(graph(16), CPU, {}, True).timings)
