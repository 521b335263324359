"""CP-SAT gives what HiGHS gives, and what brute force does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagecut.partitioner import cpsat, highs
from stagecut.partitioner.evaluate import evaluate
from stagecut.partitioner.milp import best_by_milp
from stagecut.partitioner.orders import stage_windows
from stagecut.partitioner.program import UNITS, Program
from tests.partitioner import oracle
from tests.partitioner.problems import problem, random_problem

pytestmark = pytest.mark.skipif(
    not cpsat.installed(), reason="OR-Tools is not installed; pip install 'stagecut[exact]'"
)
LONG = 60.0


def best(p, upper):
    return best_by_milp(p, *stage_windows(p), upper, lambda: LONG)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 3))
def test_it_equals_brute_force(seed, n, k):
    p = random_problem(seed, n, k)
    optimum, (low, high) = oracle.optimum(p), stage_windows(p)
    if (low > high).any():
        return  # pins alone exclude all
    if not np.isfinite(optimum):
        answer = best(p, 1e6)
        assert answer.complete and answer.assignment is None
        return
    answer = best(p, optimum * 1.5 + 1e-6)
    assert answer.complete and answer.assignment is not None
    reached = evaluate(p, answer.assignment)
    assert not reached.faults
    assert reached.bottleneck_seconds == pytest.approx(optimum, rel=1e-5, abs=1e-9)
    assert answer.refuted_seconds <= optimum * (1 + 1e-12)
    if optimum > 0:
        below = best(p, optimum)
        assert below.complete and below.assignment is None


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1e-9, 1.0, 1e9]),
    st.sampled_from(["once", "per_consumer"]),
)
def test_any_unit_and_both_send_rules(seed, unit, rule):
    """Transfers from far below the work to far above it."""
    p = random_problem(seed, 5, 3)
    p = replace(p, send_rule=rule, link_seconds_per_byte=p.link_seconds_per_byte * unit)
    optimum = oracle.optimum(p)
    if np.isfinite(optimum) and optimum > 0:
        answer = best(p, optimum * 1.2)
        assert answer.assignment is not None
        reached = evaluate(p, answer.assignment).bottleneck_seconds
        assert reached == pytest.approx(optimum, rel=1e-5)


def test_memory_decides():
    """Layers hold 10, and the first stage keeps three micro-batches of each: 4 and 6 layers."""
    p = problem(
        2, [1.0] * 10, [(c, c + 1) for c in range(9)], saved=[([c], 10.0) for c in range(10)],
        in_flight=[3, 1], memory_limit_bytes=np.array([120.0, 200.0]),
    )  # fmt: skip
    answer = best(p, 100.0)
    assert answer.complete
    assert np.bincount(answer.assignment.stage).tolist() == [4, 6]


def two_towers():
    """Two chains side by side, no two figures alike: a little work proves nothing."""
    rng = np.random.default_rng(5)
    edges = [(c, c + 2) for c in range(38)]
    values = [((a, b), float(rng.uniform(0.1, 1))) for a, b in edges]
    return problem(4, rng.uniform(1, 2, 40).tolist(), edges, values)


def test_the_same_work_gives_the_same_answer():
    p, effort = two_towers(), 1e-3
    program = Program(p, *stage_windows(p), 40.0)
    assert program.build(lambda: LONG)
    first, again = (cpsat.solve(program, LONG, effort, 0.0) for _ in range(2))
    assert not first.finished and not first.none_exists  # the budget ended it
    assert first.refuted == again.refuted > 0
    assert (first.values is None) == (again.values is None)
    assert first.values is None or (first.values == again.values).all()
    assert cpsat.solve(program, LONG, 1.0, 0.0).refuted >= first.refuted


def test_without_it_highs_does(monkeypatch):
    asked = []
    monkeypatch.setattr(cpsat, "installed", lambda: False)
    monkeypatch.setattr(cpsat, "solve", lambda *_: pytest.fail("not installed"))
    solve = highs.solve
    monkeypatch.setattr(highs, "solve", lambda *given: asked.append(given) or solve(*given))
    p = problem(2, [1.0, 2.0, 3.0], [(0, 1), (1, 2)])
    answer = best(p, 10.0)
    assert asked and evaluate(p, answer.assignment).bottleneck_seconds == pytest.approx(3.1)


def test_impossible_figures_stay_impossible():
    """A figure above all limits is cut off, and may not become possible by it."""
    p = problem(2, [1.0, 1.0], [(0, 1)], [((0, 1), 1e30)])
    program = Program(p, *stage_windows(p), 2.5)
    assert program.build(lambda: LONG)
    outcome = cpsat.solve(program, LONG, 1.0, 0.0)
    if outcome.values is None:
        assert outcome.none_exists  # stages may not be empty
    else:
        assert outcome.refuted <= UNITS
        stage = program.assignment(outcome.values).stage
        assert stage[0] == stage[1]


TOO_MUCH_FOR_THE_LAST = {
    "seconds": {
        "forward_seconds": [[1.0, 1.0, 1.0], [1000.0, 1.0, 1.0]],
        "backward_seconds": np.zeros((2, 3)), "device_kind": [0, 1],
    },
    "limit": {"weights": [([0], 1000.0)], "memory_limit_bytes": [np.inf, 2.0]},
    "in flight": {
        "saved": [([0], 1000.0)], "in_flight": [1, 500], "memory_limit_bytes": [1001.0] * 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("fields", TOO_MUCH_FOR_THE_LAST.values(), ids=TOO_MUCH_FOR_THE_LAST)
def test_what_the_last_stage_cannot_take_the_first_does(fields):
    """There the figure is a constant less a variable's: both are cut off alike, or none is."""
    p = problem(2, [1.0, 1.0, 1.0], values=[], **fields)
    assert oracle.optimum(p) == 2.0
    answer = best(p, 3.5)
    assert answer.complete and answer.assignment.stage[0] == 0
    assert evaluate(p, answer.assignment).bottleneck_seconds == 2.0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_figures_far_above_the_limits_equal_brute_force(seed):
    draw = np.random.default_rng(seed)
    p = random_problem(seed, 5, 3)
    dear = np.where(draw.random(p.forward_seconds.shape) < 0.3, 1e3, 1.0)
    large = np.where(draw.random(len(p.weight_bytes)) < 0.15, 1e5, 1.0)
    p = replace(p, forward_seconds=p.forward_seconds * dear, weight_bytes=p.weight_bytes * large,
                memory_limit_bytes=draw.choice([40.0, 90.0, 1e6, np.inf], 3))  # fmt: skip
    optimum, (low, high) = oracle.optimum(p), stage_windows(p)
    if (low > high).any() or optimum == 0:
        return
    answer = best(p, optimum * 1.2 if np.isfinite(optimum) else 1e6)
    assert answer.complete
    assert (answer.assignment is None) == (not np.isfinite(optimum))
    if answer.assignment is not None:
        reached = evaluate(p, answer.assignment).bottleneck_seconds
        assert reached == pytest.approx(optimum, rel=1e-5)
