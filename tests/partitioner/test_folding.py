"""Folded placement: every fold is a pipeline, and skips make it better than any stage a device."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagecut.ir.problem import Problem
from stagecut.ir.schedule import StageEdge
from stagecut.ir.solution import Assignment
from stagecut.partitioner import best_fold, device_loads, evaluate, explain
from stagecut.partitioner.folding import folds, on_devices, stage_costs
from stagecut.partitioner.planning.costing import Costed, step_costs
from stagecut.partitioner.runs import walk
from stagecut.partitioner.schedules import expand, folded, make_schedule, simulate
from tests.partitioner.oracle import loads
from tests.partitioner.problems import problem, random_problem


def unet(depth: int, skip: float, n_stages: int = 2, **fields: object) -> Problem:
    """Down and up again: level i sends its skip, of `skip` seconds, to the same level going up."""
    n = 2 * depth
    down = [((c, c + 1), 0.1) for c in range(n - 1)]
    skips = [((c, n - 1 - c), skip) for c in range(depth - 1)]
    edges = [members for members, _ in (*down, *skips)]
    pins = np.full(n, -1)
    pins[-1] = n_stages - 1
    return problem(n_stages, [1.0] * n, sorted(edges), [*down, *skips], pins=pins, **fields)


def step(p: Problem, stage: np.ndarray, schedule: object) -> float:
    costs = step_costs(Costed(p, ("",), np.zeros(p.n), 0.0), p, stage, None)
    edges = [StageEdge(e.source, e.destination, e.backward_seconds > 0) for e in costs.edges]
    return simulate(expand(schedule, edges, ahead=1), costs).step_seconds  # type: ignore[arg-type]


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 10_000), st.integers(2, 14), st.integers(1, 4), st.booleans())
def test_every_fold_is_a_pipeline_on_all_devices(seed, n, d, pinned) -> None:
    p = random_problem(seed, n, d)
    pins = np.full(n, -1)
    if pinned:
        pins[-1] = d - 1
    seconds = (p.forward_seconds + p.backward_seconds)[0].tolist()
    p = problem(d, seconds, [(a, b) for a, b in p.edges.tolist()], pins=pins)
    for fold in folds(p):
        assert sorted(set(fold.device_of_stage)) == list(range(d))
        assert sorted(set(fold.stage)) == list(range(len(fold.device_of_stage)))
        posed = on_devices(p, fold.device_of_stage)
        assert evaluate(posed, Assignment(fold.stage)).faults == ()


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 10_000), st.integers(1, 14), st.integers(1, 4))
def test_a_walk_is_a_topological_order_in_runs_of_one_part(seed, n, d) -> None:
    p = random_problem(seed, n, d)
    part = np.random.default_rng(seed).integers(0, d, n)
    end = np.flatnonzero(p.pins == d - 1)
    part[end] = part[end[0]] if len(end) else 0
    p = problem(d, [1.0] * n, [(a, b) for a, b in p.edges.tolist() if a not in end], pins=p.pins)
    runs = walk(p, part)
    order = [cluster for run in runs.clusters for cluster in run]
    assert sorted(order) == list(range(n))
    place = {cluster: index for index, cluster in enumerate(order)}
    assert all(place[a] < place[b] for a, b in p.edges.tolist())
    assert all(set(part[list(run)]) == {own} for run, own in zip(*astuple(runs), strict=True))
    assert all(a != b for a, b in zip(runs.device, runs.device[1:], strict=False))


def astuple(runs: object) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    return runs.clusters, runs.device  # type: ignore[attr-defined]


@pytest.mark.parametrize("depth", [3, 4, 5, 6])
def test_dear_skips_are_folded_and_beat_every_pipeline_of_two_stages(depth: int) -> None:
    p, m = unet(depth, skip=1.0), 8
    found = best_fold(p, m)
    assert found is not None
    assert found.fold.device_of_stage == (0, 1, 0)
    pipelines = [
        np.asarray(stage)
        for stage in product((0, 1), repeat=p.n)
        if all(stage[a] <= stage[b] for a, b in p.edges.tolist()) and set(stage) == {0, 1}
    ]
    best = min(step(p, stage, make_schedule("1f1b", 2, 2, m)) for stage in pipelines)
    assert found.step_seconds < best
    if depth % 2:
        return  # halves of odd levels are not even, and the shortest step has a larger load
    # No placement of clusters on devices, pipeline or not, has a smaller largest load.
    least = min(max(loads(p, s)) for s in product((0, 1), repeat=p.n) if set(s) == {0, 1})
    loaded = device_loads(found.evaluation, found.fold.device_of_stage)
    assert loaded.max() == pytest.approx(least)


def test_the_step_told_is_that_of_the_placement() -> None:
    found = best_fold(unet(5, skip=1.0), 6)
    assert found is not None
    schedule = folded(found.fold.device_of_stage, 6, stage_costs(found.evaluation))
    assert found.step_seconds == step(found.problem, found.fold.stage, schedule)


def test_unequal_stages_are_scheduled_by_what_they_cost() -> None:
    owner, costs = (0, 1, 0), [(1.0, 2.0), (8.0, 16.0), (7.0, 14.0)]
    p = problem(3, [3.0, 24.0, 21.0], [(0, 1), (1, 2)], [], pins=np.array([-1, -1, 2]))
    p = on_devices(
        problem(2, [3.0, 24.0, 21.0], [(0, 1), (1, 2)], forward_seconds=p.forward_seconds / 3,
                backward_seconds=p.forward_seconds * 2 / 3),
        owner,
    )  # fmt: skip
    stage = np.arange(3)
    told, untold = (step(p, stage, folded(owner, 8, given)) for given in (costs, ()))
    assert told < untold
    assert told >= 8 * 24.0


def test_stages_of_a_device_share_its_memory() -> None:
    weights = [([c], 10.0) for c in range(8)]
    found = best_fold(unet(4, 1.0, weights=weights, memory_limit_bytes=np.full(2, 45.0)), 4)
    assert found is not None
    owner = np.asarray(found.fold.device_of_stage)
    held = np.bincount(owner, found.evaluation.memory_bytes)
    assert (held <= 45.0).all()
    limits = found.problem.memory_limit_bytes
    assert np.allclose(limits, 45.0 - held[owner] + found.evaluation.memory_bytes)
    assert best_fold(unet(4, 1.0, weights=weights, memory_limit_bytes=np.full(2, 35.0)), 4) is None


def test_an_explanation_counts_a_device_s_stages_together() -> None:
    found = best_fold(unet(4, 1.0), 4)
    assert found is not None
    owner, loads_ = found.fold.device_of_stage, found.evaluation.load_seconds
    told = explain(found.problem, Assignment(found.fold.stage), 0, owner)
    whole = device_loads(found.evaluation, owner)
    assert told.bottleneck_seconds == pytest.approx(whole.max())
    assert told.bottleneck_seconds > loads_.max()
    assert told.load_seconds == loads_[0]
    for shift in told.shifts:
        assert shift.bottleneck_seconds - shift.change_seconds == pytest.approx(whole.max())


def test_more_devices_than_clusters_have_no_fold() -> None:
    assert best_fold(problem(3, [1.0, 1.0], [(0, 1)]), 4) is None


def test_the_same_problem_folds_the_same_way() -> None:
    first, again = (best_fold(unet(12, 0.5, 4), 16) for _ in range(2))
    assert first is not None and again is not None
    assert first.fold.device_of_stage == again.fold.device_of_stage
    assert (first.fold.stage == again.fold.stage).all()
