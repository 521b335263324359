"""The bound for nearly-chains, held against every assignment of small graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stagecut.partitioner import chains
from stagecut.partitioner.bound import lower_bound
from stagecut.partitioner.chains import chain_bound
from stagecut.partitioner.orders import narrowed
from stagecut.partitioner.relaxed import relax
from stagecut.partitioner.solve import solve
from tests.partitioner import oracle
from tests.partitioner.problems import problem, random_problem


def bound(p, low, high, target):
    return chain_bound(p, relax(p), target, low, high, lambda: False)


@pytest.mark.parametrize("most_loss", [0.0, 0.2, 5.0])
def test_the_bound_and_its_windows_hold_for_every_assignment_in_the_windows(monkeypatch, most_loss):
    """Whatever is joined to its users, wherever clusters may be, whatever the target is."""
    monkeypatch.setattr(chains, "_LOSSES", (most_loss,))
    checked = tight = 0
    for seed in range(100):
        draw = np.random.default_rng(seed)
        n, k = int(draw.integers(2, 7)), int(draw.integers(2, 4))
        p = random_problem(seed, n, k, float(draw.uniform(0.1, 0.6)))
        low, high = np.sort(draw.integers(0, k, (2, n)), axis=0)
        low[draw.random(n) < 0.6], high[draw.random(n) < 0.6] = 0, k - 1
        low, high = narrowed(p, low, high)
        fitting = [
            (max(oracle.loads(p, stage)), stage)
            for stage in oracle.valid_assignments(p)
            if (low <= stage).all() and (stage <= high).all()
        ]
        if not fitting or not min(fitting)[0]:
            continue
        best = min(fitting)[0]
        for factor in (0.9, 1.0, 1.2, 2.0):
            target = best * factor
            found = bound(p, low, high, target)
            assert found.share * target <= best * (1 + 1e-9) or found.share * target <= target
            for load, stage in fitting:
                if load < target * (1 - 1e-7):
                    assert found.share * target <= load * (1 + 1e-9)
                    assert (found.low <= stage).all() and (stage <= found.high).all()
            tight += found.share * target >= best * 0.9
        checked += 1
    assert checked > 40
    assert tight > 20


def with_side_branches(k=4, layers=24, spread=0.3):
    """A chain of layers; each adds the end of a branch of its own that only needs the input."""
    work, edges, values = [1.0], [], []
    last = 0
    for _ in range(layers):
        branch, layer = len(work), len(work) + 1
        work += [spread, 2.0]
        edges += [(0, branch), (branch, layer), (last, layer)] if last else [(0, branch)]
        edges += [] if last else [(branch, layer), (0, layer)]
        values += [((branch, layer), 0.2)]
        values += [((last, layer), 0.5)] if last else []
        last = layer
    values.append(((0, *range(1, len(work), 2), 2), 0.01))
    return problem(k, work, sorted(set(edges)), values)


def test_a_chain_with_branches_at_every_layer_is_bounded_closely():
    """2^24 prefixes: none of them need be looked at, since a branch belongs with its user."""
    p = with_side_branches()
    found = solve(p, "dp")
    bottleneck = found.evaluation.bottleneck_seconds
    assert lower_bound(p, bottleneck, 0.0, lambda: False).seconds > 0.985 * bottleneck


def test_a_maker_pays_for_each_stage_that_is_surely_another():
    """One value is used along the whole chain: three sends leave its stage, not one."""
    n = 40
    edges = [(c, c + 1) for c in range(n - 1)]
    p = problem(4, [1.0] * n, edges, [((0, *range(1, n)), 1.5)])
    once = replace(p, send_rule="once")
    best = solve(p, "exact").evaluation.bottleneck_seconds
    target = best / 1.0001
    assert lower_bound(p, best, 0.0001, lambda: False).seconds == pytest.approx(target, rel=1e-6)
    assert solve(once, "exact").evaluation.bottleneck_seconds < best * 0.95


def test_too_many_prefixes_give_no_bound():
    """A wide graph: nothing is known, rather than something wrong."""
    p = problem(2, [1.0] * 40, [], [])
    low, high = np.zeros(40, dtype=np.int64), np.ones(40, dtype=np.int64)
    assert bound(p, low, high, 25.0).share == 0.0
