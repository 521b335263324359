"""The linear programme of work and memory: never above the optimum, and where it is needed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagecut.ir.errors import InfeasibleError
from stagecut.partitioner import bound as bounds
from stagecut.partitioner.bound import lower_bound
from stagecut.partitioner.memory_bound import memory_share
from stagecut.partitioner.orders import stage_windows
from stagecut.partitioner.relaxed import relax
from stagecut.partitioner.solve import solve
from tests.partitioner import oracle
from tests.partitioner.problems import problem, random_problem


def share(p, target=1.0):
    return memory_share(relax(p), target, *stage_windows(p))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 3), st.floats(0.01, 100))
def test_it_is_never_above_the_optimum(seed, n, k, target):
    p = random_problem(seed, n, k)
    low, high = stage_windows(p)
    best = oracle.optimum(p)
    if np.isfinite(best) and not (low > high).any():
        assert share(p, target) * target <= best * (1 + 1e-9)


def heavy_ends(limit=9.0):
    """Two branches of three between two ends, where early stages keep three micro-batches of each.

    The first stage has room for three clusters, the second for four.
    """
    edges = [(0, 1), (1, 2), (2, 3), (0, 4), (4, 5), (5, 6), (3, 7), (6, 7)]
    return problem(
        3, [1.0] * 8, edges, [], saved=[([c], 1.0) for c in range(8)], in_flight=[3, 2, 1],
        memory_limit_bytes=np.full(3, limit),
    )  # fmt: skip


def test_many_micro_batches_in_flight_leave_work_to_others():
    p = heavy_ends(limit=6.0)  # 2 and 3 clusters; the last has 3
    assert share(p) == pytest.approx(3.0, rel=1e-5)
    assert share(heavy_ends(limit=23.0)) == pytest.approx(8 / 3, rel=1e-5)
    assert share(heavy_ends(limit=24.0)) == 0.0  # the first stage has room for all
    assert oracle.optimum(p) == pytest.approx(3.0)


def test_nothing_fits_in_all_stages_together():
    """Each cluster fits each stage, and any stage the work that it surely has."""
    p = heavy_ends(limit=4.0)  # room for 1.33, 2 and 4 of 8
    assert share(p) == np.inf
    with pytest.raises(InfeasibleError, match="Proved"):
        solve(p, "auto")


def test_it_is_part_of_the_bound(monkeypatch):
    """A wide graph: nothing is surely in one stage, so that only the sums tell."""
    n = 24
    p = problem(
        4, [1.0] * n, [], [], saved=[([c], 1.0) for c in range(n)], in_flight=[4, 3, 2, 1],
        memory_limit_bytes=np.full(4, 12.0),
    )  # fmt: skip
    found = solve(p, "dp").evaluation.bottleneck_seconds
    assert found == pytest.approx(11.0)  # 3, 4 and 6 fit the first three
    assert lower_bound(p, found, 0.0, lambda: False).seconds == pytest.approx(found, rel=1e-4)
    monkeypatch.setattr(bounds, "memory_share", lambda *_: 0.0)
    assert lower_bound(p, found, 0.0, lambda: False).seconds < 0.7 * found
