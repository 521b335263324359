from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagecut.ir.errors import ArgumentError
from stagecut.ir.solution import Assignment
from stagecut.partitioner.evaluate import evaluate, score
from stagecut.partitioner.moves import Stages
from tests.partitioner import oracle
from tests.partitioner.problems import problem, random_problem

sizes = st.tuples(st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 4))


@given(sizes, st.randoms(use_true_random=False))
def test_equals_the_definition(size, draw):
    p = random_problem(*size)
    stage = [draw.randrange(p.n_stages) for _ in range(p.n)]
    scored = evaluate(p, Assignment(np.asarray(stage)))
    np.testing.assert_allclose(scored.load_seconds, oracle.loads(p, stage), rtol=1e-12)
    np.testing.assert_allclose(scored.memory_bytes, oracle.memory(p, stage), rtol=1e-12)
    assert (not scored.faults) == oracle.valid(p, stage)


@given(sizes, st.randoms(use_true_random=False))
def test_moves_keep_the_exact_loads(size, draw):
    p = random_problem(*size)
    stages = Stages(p, Assignment(np.asarray([draw.randrange(p.n_stages) for _ in range(p.n)])))
    for _ in range(6):
        cluster, to = draw.randrange(p.n), draw.randrange(p.n_stages)
        if to != stages.stage[cluster]:
            stages.move(cluster, to)
    np.testing.assert_allclose(stages.load, oracle.loads(p, stages.stage), atol=1e-9)
    if np.isfinite(p.memory_limit_bytes).any():
        np.testing.assert_allclose(stages.memory, oracle.memory(p, stages.stage), atol=1e-9)


@pytest.mark.parametrize("rule, sent", [("once", 5.0), ("per_consumer", 10.0)])
def test_a_producer_pays_by_the_send_rule(rule, sent):
    p = problem(3, [1, 1, 1], [(0, 1), (0, 2)], [((0, 1, 2), 5.0)], send_rule=rule)
    scored = evaluate(p, Assignment(np.asarray([0, 1, 2])))
    assert scored.send_seconds.tolist() == [sent, 0, 0]
    assert scored.receive_seconds.tolist() == [0, 5, 5]
    assert scored.bytes_cut == sent


def test_a_tensor_is_charged_once_a_stage_however_many_use_it():
    p = problem(2, [1, 1, 1, 1], [(0, 1), (0, 2), (0, 3)], [((0, 1, 2, 3), 5.0)])
    scored = evaluate(p, Assignment(np.asarray([0, 1, 1, 1])))
    assert scored.load_seconds.tolist() == [6, 8]


def test_gradients_return_over_the_opposite_link():
    p = problem(
        2, [0, 0], [(0, 1)], [((0, 1), 3.0)],
        value_backward_bytes=[2.0], link_seconds_per_byte=[[0, 1], [10, 0]],
    )  # fmt: skip
    scored = evaluate(p, Assignment(np.asarray([0, 1])))
    assert scored.send_seconds.tolist() == [3, 20]
    assert scored.receive_seconds.tolist() == [20, 3]


def test_a_value_may_be_made_later_than_it_is_used():
    p = problem(2, [1, 1], [(0, 1)], [((1, 0), 7.0)], send_rule="once")
    scored = evaluate(p, Assignment(np.asarray([0, 1])))
    assert scored.load_seconds.tolist() == [8, 8]
    assert not scored.faults


def test_faults_name_what_is_broken():
    p = problem(
        3, [1, 1, 1], [(0, 1)], pins=[0, -1, -1], memory_limit_bytes=[5.0, 5, 5],
        weights=[([0, 1, 2], 6.0)],
    )  # fmt: skip
    faults = "\n".join(evaluate(p, Assignment(np.asarray([2, 1, 2]))).faults)
    for said in ("'op0' (stage 2)", "pinned to stage 0", "stage 1 needs 6", "stage 0 is empty"):
        assert said in faults


def test_a_wrong_assignment_is_an_error():
    p = problem(2, [1, 1])
    with pytest.raises(ArgumentError, match="2 groups of ops"):
        evaluate(p, Assignment(np.asarray([0])))
    with pytest.raises(ArgumentError, match="'op1' to stage 2"):
        evaluate(p, Assignment(np.asarray([0, 2])))


def test_score_prefers_feasible_then_fast_then_few_bytes_then_even():
    p = problem(2, [1, 1, 1, 1], [(0, 1), (1, 2), (2, 3)])
    ranked = sorted(([0, 0, 0, 1], [0, 0, 1, 1], [1, 0, 0, 1]), key=lambda s: score(_scored(p, s)))
    assert ranked == [[0, 0, 1, 1], [0, 0, 0, 1], [1, 0, 0, 1]]


def _scored(p, stage):
    return evaluate(p, Assignment(np.asarray(stage)))
