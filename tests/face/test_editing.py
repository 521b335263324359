"""Plans as things to look into and to edit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import networkx
import pytest
import torch
from torch import nn

import stagecut
from stagecut.ir.errors import ArgumentError, PlanError
from tests.cases.models import Chain, LongSkip
from tests.support.equality import Case, assert_trained_alike, train_pipeline, train_unsplit

X = torch.randn(2, 8)


def stages_of(plan: stagecut.Plan, module: str) -> set[int]:
    graph = plan.to_networkx()
    return {s for _, n in graph.nodes(data=True) if n["scope"] == module for s in n["stages"]}


def test_a_moved_module_trains_as_before() -> None:
    case = Case(LongSkip(), (torch.randn(8, 8),), {}, lambda out: out.square().mean())
    want = train_unsplit(case, 4, 2)
    pinned = stagecut.partition(case.model, 2, (X,), n_microbatches=4, pins={"steps.2": 0})
    plan = stagecut.Plan(replace(pinned.data, pins=()))
    edited = plan.move("steps.2", stage=1)
    assert stages_of(plan, "steps.2") == {0}
    assert stages_of(edited, "steps.2") == {1}
    pipe = stagecut.pipeline(edited, case.model, loss_fn=case.loss, runtime="local")
    assert_trained_alike(train_pipeline(case, pipe, 2), want)
    assert "steps.2: stage 0 -> 1" in plan.diff(edited)
    assert plan.diff(plan) == "no difference"
    assert edited.lower_bound_seconds <= edited.bottleneck_seconds


def test_an_edit_that_leaves_no_pipeline_is_refused() -> None:
    plan = stagecut.partition(Chain(), 2, (X,))
    with pytest.raises(PlanError, match=r"moving steps.5 to stage 0 leaves no pipeline"):
        plan.move("steps.5", stage=0)
    with pytest.raises(ArgumentError, match=r"no op is of module 'nothing'"):
        plan.move("nothing", stage=0)
    for stage in (9, 1.0, "1", True):
        with pytest.raises(ArgumentError, match=f"no stage {stage!r}"):
            plan.move("steps.0", stage=stage)  # type: ignore[arg-type]
    plan = stagecut.partition(nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))), 2, (X,))
    with pytest.raises(PlanError, match="makes an output, which the last stage has to give"):
        plan.move("3", stage=0)


def test_a_cut_is_explained_in_the_words_of_the_model() -> None:
    plan = stagecut.partition(Chain(), 2, (X,))
    told, stages = plan.explain(0), plan.to_networkx().nodes(data="stages")
    for way, source in (("0 → 1", 0), ("1 → 0", 1)):
        (named,) = re.findall(rf"{way}\s+(?:steps\.\d: )?(\w+) \(models\.py:\d+\)", told)
        assert dict(stages)[named] == (source,)
    assert "lowers the bottleneck" in told
    for stage in (2, 1.0, "0"):
        with pytest.raises(ArgumentError, match=f"no stage {stage!r}; stages are 0 to 1"):
            plan.explain(stage)  # type: ignore[arg-type]


def test_a_cut_that_a_move_improves_says_which() -> None:
    pinned = stagecut.partition(Chain(), 2, (X,), pins={"steps.4": 0})
    plan = stagecut.Plan(replace(pinned.data, pins=()))
    for stage in (0, 1):
        assert re.search(
            r"Moving steps\.4: \w+_4 \(.*\) to stage 1 would\s+lower the", plan.explain(stage)
        )


def test_an_edit_keeps_pins_also_of_a_plan_that_was_saved(tmp_path: Path) -> None:
    plan = stagecut.partition(Chain(), 2, (X,), pins={"steps.4": 0})
    plan.save(tmp_path / "plan.json")
    for held in (plan, stagecut.Plan.load(tmp_path / "plan.json")):
        assert held.data.pins == (("steps.4", 0),)
        with pytest.raises(PlanError, match=r"break a pin: steps\.4 is pinned to stage 0\. Plan"):
            held.move("steps.4", stage=1)
        again = held.move("steps.4", stage=0)
        assert stages_of(again, "steps.4") == {0}
        assert again.data.pins == held.data.pins


def test_a_move_that_a_pin_bars_is_explained_with_the_pin() -> None:
    plan = stagecut.partition(Chain(), 2, (X,), pins={"steps.4": 0})
    told = " ".join(plan.explain(0).split())
    assert "not possible: steps.4 is pinned to stage 0" in told
    assert "would lower the bottleneck, and is not possible" in told
    assert "plan.move tries it" not in told


def test_one_stage_has_no_cut_to_explain() -> None:
    assert "nothing was cut" in stagecut.partition(Chain(), 1, (X,)).explain(0)


def test_the_graph_for_networkx() -> None:
    plan = stagecut.partition(LongSkip(), 2, (X,))
    graph = plan.to_networkx()
    assert networkx.is_directed_acyclic_graph(graph)
    assert graph.number_of_nodes() == len(plan.data.graph.ops)
    for a, b in graph.edges():
        assert min(graph.nodes[a]["stages"]) <= max(graph.nodes[b]["stages"])


def test_verify() -> None:
    plan = stagecut.partition(Chain(), 2, (X,))
    plan.verify(Chain())
    with pytest.raises(PlanError, match=r"steps.5.weight is not in the model"):
        plan.verify(Chain(5))
