"""Transfers priced by where other clusters are expected: exact for the cut that is expected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagecut.ir.solution import Assignment
from stagecut.partitioner import dp
from stagecut.partitioner.dp import cut_order
from stagecut.partitioner.evaluate import evaluate
from stagecut.partitioner.expected import Expected
from stagecut.partitioner.gather import gather
from stagecut.partitioner.intervals import LinearOrder
from stagecut.partitioner.solve import solve
from tests.partitioner import oracle
from tests.partitioner.problems import problem, random_problem

NODE = np.arange(4) // 2
TWO_NODES = np.where(NODE[:, None] == NODE, 0.1, 2.0)
"""Seconds a byte between four devices in two nodes."""


@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(2, 4))
def test_the_expected_cut_costs_what_it_scores(seed, n, k):
    p = replace(random_problem(seed, n, min(k, n), 0.5), send_rule="per_consumer")
    order, k = np.arange(n), p.n_stages
    line = LinearOrder.of(p, order)
    for stage in oracle.contiguous(p, order):
        costs = Expected(line, np.arange(n + 1), np.asarray(stage))
        ends = np.cumsum(np.bincount(stage, minlength=k))
        starts = ends - np.bincount(stage)
        got = [
            costs.load(s, slice(end, end + 1), slice(start, start + 1))[0, 0]
            for s, (end, start) in enumerate(zip(ends.tolist(), starts.tolist(), strict=True))
        ]
        assert got == pytest.approx(oracle.loads(p, stage))


def used_by_all(n=9, k=3, cost=1.5):
    """A chain whose first cluster's value is used all along: its maker pays for every stage."""
    edges = [(c, c + 1) for c in range(n - 1)]
    return problem(k, [1.0] * n, edges, [((0, *range(1, n)), cost)])


@pytest.mark.parametrize("cost", [0.4, 0.9, 1.5, 3.0])
@pytest.mark.parametrize("links", [np.ones((4, 4)), TWO_NODES])
def test_a_cut_counts_every_consumer_and_every_link(cost, links, monkeypatch):
    p = replace(used_by_all(12, 4, cost), link_seconds_per_byte=links)
    least = min(max(oracle.loads(p, stage)) for stage in oracle.contiguous(p, range(12)))
    found = evaluate(p, cut_order(p, np.arange(12))).bottleneck_seconds
    assert found == pytest.approx(least)
    monkeypatch.setattr(dp, "_RECOUNTS", 0)
    assert evaluate(p, cut_order(p, np.arange(12))).bottleneck_seconds >= found


def test_without_recounting_the_maker_is_overloaded(monkeypatch):
    p = used_by_all(40, 4)
    counted = evaluate(p, cut_order(p, np.arange(40))).bottleneck_seconds
    monkeypatch.setattr(dp, "_RECOUNTS", 0)
    assert evaluate(p, cut_order(p, np.arange(40))).bottleneck_seconds > counted * 1.1


@given(st.integers(0, 10**6), st.integers(2, 8), st.integers(2, 4))
def test_what_a_known_cut_reaches_is_found_again(seed, n, k):
    p = replace(random_problem(seed, n, min(k, n), 0.5), send_rule="per_consumer")
    for stage in [s for s in oracle.contiguous(p, range(n)) if oracle.valid(p, s)][:4]:
        known = Assignment(np.asarray(stage))
        cut = cut_order(p, np.arange(n), max(oracle.loads(p, stage)), known)
        assert cut is not None
        assert not evaluate(p, cut).faults


def test_a_best_cut_that_is_known_stays_the_best():
    p = used_by_all(12, 4, 1.5)
    best = min(oracle.contiguous(p, range(12)), key=lambda stage: max(oracle.loads(p, stage)))
    least = max(oracle.loads(p, best))
    found = cut_order(p, np.arange(12), least, Assignment(np.asarray(best)))
    assert evaluate(p, found).bottleneck_seconds == pytest.approx(least)


def biased_layers(layers=90):
    """A bias made first; each layer adds a view of it, as large, to what it gets: two nodes."""
    work, edges, values = [0.1], [], []
    views, last = [], None
    for _ in range(layers):
        view, layer = len(work), len(work) + 1
        work += [0.001, 0.25]
        edges += [(0, view), (view, layer)] + ([] if last is None else [(last, layer)])
        values += [((view, layer), 0.5)] + ([] if last is None else [((last, layer), 0.1)])
        views.append(view)
        last = layer
    values.append(((0, *views), 0.5))
    node = np.arange(6) // 3
    links = np.where(node[:, None] == node, 0.01, 2.0)
    return problem(6, work, edges, values, link_seconds_per_byte=links)


def test_one_stage_takes_a_bias_from_afar_for_all_layers_behind_it():
    """Each stage of the second node would pay 1.0 for it, and the bias's 3.0, over the slow link.

    Relayed, the first of them pays 1.0, the bias's 1.0, and the views go on over the fast one.
    """
    p = biased_layers()
    plain = cut_order(p, np.arange(p.n))
    relayed = gather(p, plain, lambda: False)
    scored = evaluate(p, relayed)
    assert not scored.faults
    assert scored.bottleneck_seconds < evaluate(p, plain).bottleneck_seconds * 0.9
    views = np.arange(1, p.n, 2)
    far = views[relayed.stage[views] >= 3]
    assert (relayed.stage[far] == 3).all()
    assert relayed.stage[p.n - 1] == 5


def test_gathering_keeps_pins_and_is_never_worse():
    for seed in range(60):
        p = random_problem(seed, 9, 3, 0.4)
        for stage in [s for s in oracle.contiguous(p, range(9)) if oracle.valid(p, s)][:3]:
            before = Assignment(np.asarray(stage))
            after = evaluate(p, gather(p, before, lambda: False))
            assert not after.faults
            assert after.bottleneck_seconds <= evaluate(p, before).bottleneck_seconds * (1 + 1e-9)


def test_auto_finds_the_relay():
    p = biased_layers()
    alone = evaluate(p, gather(p, cut_order(p, np.arange(p.n)), lambda: False))
    found = solve(p, "auto")
    assert found.evaluation.bottleneck_seconds <= alone.bottleneck_seconds
    assert found.gap < 0.05
