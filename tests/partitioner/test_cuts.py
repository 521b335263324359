"""The least that crosses a boundary, held against all prefixes; and what bounds keep of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from stagecut.partitioner.bins import Bins
from stagecut.partitioner.bound import lower_bound
from stagecut.partitioner.crossings import Crossings
from stagecut.partitioner.cuts import Bin, Pairs, least_crossings
from stagecut.partitioner.dp import cut_order
from stagecut.partitioner.evaluate import evaluate
from stagecut.partitioner.reach import Paths, _Near
from tests.partitioner.problems import random_problem


def random_cut(draw, n=6, items=5):
    """Some clusters fixed on either side, random precedence and pairs of items with one head."""
    edges = [(a, b) for a in range(n) for b in range(a + 1, n) if draw.random() < 0.3]
    side = np.maximum.accumulate(np.where(draw.random(n) < 0.2, 1, 0) + (draw.random(n) < 0.1))
    inside = (np.arange(n) == 0) & (draw.random() < 0.7)
    outside = (side > 1) & ~inside
    free = ~(inside | outside)
    pairs = []
    for item in range(items):
        head = int(draw.integers(n))
        first = bool(draw.integers(2))
        for other in {int(c) for c in draw.integers(0, n, 3)} - {head}:
            pairs.append((item, head, other, True) if first else (item, other, head, False))
    item, one, two, head_first = (np.asarray(each) for each in zip(*pairs, strict=True))
    kept = ~outside[one] & ~inside[two]
    place = Bin(
        inside,
        outside,
        np.asarray([e for e in edges if free[list(e)].all()]).reshape(-1, 2).astype(np.int64),
    )
    return place, Pairs(item[kept], one[kept], two[kept], head_first[kept].astype(bool))


def cheapest(place, pairs, cost):
    """The least over every set of free clusters that is closed under precedence."""
    least = np.inf
    for chosen in product((False, True), repeat=len(place.inside)):
        within = np.asarray(chosen)
        if (place.inside & ~within).any() or (place.outside & within).any():
            continue
        if (within[place.edges[:, 1]] & ~within[place.edges[:, 0]]).any():
            continue
        crossing = within[pairs.first] & ~within[pairs.second]
        least = min(least, cost[np.unique(pairs.item[crossing])].sum())
    return least


def test_cuts_side_by_side_are_the_least_over_all_prefixes():
    """Many at once, some of them empty, of very different costs: each as if it were alone."""
    draw = np.random.default_rng(0)
    asked = [random_cut(draw) for _ in range(300)]
    for cost in (draw.uniform(0.0, 1.0, 5), np.asarray([1e-9, 1e6, 0.0, 1.0, 1e-3]), np.zeros(5)):
        found = least_crossings(asked, cost)
        expected = np.asarray([cheapest(*each, cost) for each in asked])
        assert (found <= expected * (1 + 1e-12)).all()
        np.testing.assert_allclose(found, expected, atol=1e-8 * cost.sum())
    assert len(np.unique(expected.round(3))) == 1 and len(least_crossings([], cost)) == 0


def unlimited(seed, n_stages):
    """A random problem that has a cut."""
    p = random_problem(seed, 12, n_stages, 0.3)
    return replace(p, memory_limit_bytes=np.full(n_stages, np.inf), pins=np.full(p.n, -1))


@pytest.mark.parametrize("seed", range(12))
def test_what_one_bound_found_serves_the_next(seed):
    """Bounds of other targets first, with the same crossings, change nothing."""
    p = unlimited(seed, 3)
    upper = evaluate(p, cut_order(p, np.arange(p.n))).bottleneck_seconds
    kept = Crossings(p)
    for gap in (0.5, 0.2, 0.05, 0.0):
        alone = lower_bound(p, upper, gap, lambda: False)
        after = lower_bound(p, upper, gap, lambda: False, crossings=kept)
        assert after.seconds == pytest.approx(alone.seconds, rel=1e-6)
        assert (after.low == alone.low).all() and (after.high == alone.high).all()


@pytest.mark.parametrize("seed", range(12))
def test_bins_too_far_apart_for_a_stage_tell_nothing(monkeypatch, seed):
    """What is reached is the same when every pair of bins is looked at."""
    p = unlimited(seed, 4)
    target = evaluate(p, cut_order(p, np.arange(p.n))).bottleneck_seconds
    bins = Bins(Crossings(p), target)
    near = Paths(bins)
    before, after = _Near.before, _Near.after
    monkeypatch.setattr(_Near, "before", staticmethod(lambda bins, span: before(bins, 1e9)))
    monkeypatch.setattr(_Near, "after", staticmethod(lambda bins, span: after(bins, 1e9)))
    every = Paths(bins)
    for share in (0.3, 0.7, 0.9, 1.0):
        limit = share * target
        assert near.possible(limit) == every.possible(limit)
        one, other = near.reach(limit), every.reach(limit)
        assert (one.alive == other.alive).all()
        assert (one.most == other.most).all() and (one.least == other.least).all()
