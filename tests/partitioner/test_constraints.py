"""Each constraint: ignoring it gives a worse or invalid plan, honouring it the optimum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stagecut.ir.errors import ArgumentError, InfeasibleError
from stagecut.ir.solution import Assignment
from stagecut.partitioner import METHODS, evaluate, explain, solve, solve_placed
from stagecut.partitioner.baselines import uniform
from stagecut.partitioner.evaluate import score
from stagecut.partitioner.orders import orders
from stagecut.partitioner.polish import polish
from stagecut.partitioner.search import Search
from tests.partitioner import oracle
from tests.partitioner.problems import chain, problem, random_problem

SEARCHING = ("auto", "dp", "metis", "exact")
LINE = [(c, c + 1) for c in range(5)]


@pytest.mark.parametrize("method", SEARCHING)
def test_memory_with_micro_batches_in_flight(method):
    p = problem(
        3, [1] * 6, LINE, saved=[([c], 10.0) for c in range(6)], in_flight=[3, 2, 1],
        memory_limit_bytes=[40.0, 40.0, 40.0],
    )  # fmt: skip
    free = replace(p, memory_limit_bytes=np.full(3, np.inf))
    assert evaluate(p, solve(free, method).assignment).faults
    solution = solve(p, method)
    assert solution.assignment.stage.tolist() == [0, 1, 1, 2, 2, 2]
    assert solution.evaluation.bottleneck_seconds == pytest.approx(oracle.optimum(p))


@pytest.mark.parametrize("method", SEARCHING)
def test_pins(method):
    p = problem(2, [1] * 6, LINE, pins=[-1, -1, -1, -1, 0, -1])
    free = replace(p, pins=np.full(6, -1))
    assert evaluate(p, solve(free, method).assignment).faults
    solution = solve(p, method)
    assert solution.assignment.stage.tolist() == [0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("method", SEARCHING)
def test_a_pin_moves_what_is_not_tied_to_it(method):
    p = problem(2, [4, 4, 1, 1], [(0, 2), (1, 3)], pins=[1, -1, -1, -1])
    solution = solve(p, method)
    assert solution.assignment.stage.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("method", SEARCHING)
def test_kinds_of_devices(method):
    p = problem(
        2, [1] * 6, LINE, forward_seconds=[[3.0] * 6, [1.0] * 6],
        backward_seconds=np.zeros((2, 6)), device_kind=[0, 1],
    )  # fmt: skip
    blind = replace(p, device_kind=np.zeros(2, dtype=np.int64))
    ignored = evaluate(p, solve(blind, method).assignment).bottleneck_seconds
    honoured = solve(p, method).evaluation.bottleneck_seconds
    assert honoured < ignored
    assert honoured == pytest.approx(oracle.optimum(p))


@pytest.mark.parametrize("method", ("auto", "exact"))
def test_slow_links(method):
    slow = [[0, 1, 1], [1, 0, 30], [1, 30, 0]]
    p = problem(
        3, [2, 2, 2, 2, 2, 1], LINE, [((c, c + 1), (1, 1, 1, 0.1, 0.1)[c]) for c in range(5)],
        link_seconds_per_byte=np.asarray(slow, dtype=float),
    )  # fmt: skip
    blind = replace(p, link_seconds_per_byte=np.ones((3, 3)))
    ignored = evaluate(p, solve(blind, method).assignment).bottleneck_seconds
    honoured = solve(p, method).evaluation.bottleneck_seconds
    assert honoured < ignored
    assert honoured == pytest.approx(oracle.optimum(p))


def test_which_device_takes_which_position():
    p = problem(
        2, [1] * 6, LINE, weights=[([c], 8.0 - c) for c in range(6)], device_kind=[0, 0],
        memory_limit_bytes=[7.0, 27.0],
    )  # fmt: skip
    with pytest.raises(InfeasibleError):
        solve(p)
    placed = solve_placed(p)
    assert placed.device_of_stage.tolist() == [1, 0]
    assert not evaluate(placed.problem, placed.solution.assignment).faults


def test_synchronising_a_shared_weight_is_paid_or_avoided():
    p = problem(
        2, [2, 1, 1, 2], [(0, 1), (1, 2), (2, 3)], [((c, c + 1), 0.0) for c in range(3)],
        weights=[([1, 2], 4.0)], weight_sync_seconds=[5.0],
    )  # fmt: skip
    solution = solve(p, "exact")
    assert solution.evaluation.bottleneck_seconds == 4
    assert solution.evaluation.sync_seconds.tolist() == [0, 0]


def test_more_stages_than_clusters():
    with pytest.raises(InfeasibleError, match=r"5 stages need .* model has 2; ask for 2 stages"):
        solve(problem(5, [1, 1]))


def test_what_does_not_fit_is_named_with_the_limit_that_would():
    p = problem(
        2, [1] * 4, [(c, c + 1) for c in range(3)], saved=[([c], 10.0) for c in range(4)],
        in_flight=[2, 1], memory_limit_bytes=[25.0, 25.0],
    )  # fmt: skip
    with pytest.raises(InfeasibleError) as caught:
        solve(p)
    message = str(caught.value)
    for said in ("stage 1", "5 bytes too", "saved activations", "x 1 in flight",
                 "a limit of 30 bytes", "Proved: no assignment", "use smaller"):  # fmt: skip
        assert said in message
    assert not solve(replace(p, memory_limit_bytes=np.full(2, 30.0))).evaluation.faults


def test_weights_that_fit_nowhere_are_a_proof():
    p = problem(2, [1, 1], [(0, 1)], weights=[([0], 90.0)], memory_limit_bytes=[50.0, 50.0])
    with pytest.raises(InfeasibleError, match=r"'op0' alone needs 90 B|exact search"):
        solve(p, "dp")


def test_contradicting_pins_name_both():
    p = problem(2, [1, 1], [(0, 1)], pins=[1, 0])
    with pytest.raises(InfeasibleError, match="'op1' is pinned to stage 0 and needs 'op0'"):
        solve(p)


def test_a_baseline_that_breaks_a_constraint_says_so():
    p = problem(2, [1] * 4, LINE[:3], weights=[([0], 9.0), ([1], 9.0)], memory_limit_bytes=[9.0, 9])
    with pytest.raises(InfeasibleError, match="'uniform' takes no account"):
        solve(p, "uniform")
    assert solve(p).assignment.stage.tolist() == [0, 1, 1, 1]


def test_baselines_count_what_they_say():
    scopes = ("a", "a", "a", "b", "c", "c", "d", "d")
    p = problem(2, [1, 1, 1, 1, 1, 1, 1, 9], [(c, c + 1) for c in range(7)], scopes=scopes,
                weights=[([0], 8.0), ([5], 2.0), ([6], 2.0)])  # fmt: skip
    stages = {m: solve(p, m).assignment.stage.sum() for m in ("uniform", "parameters", "layers")}
    assert stages == {"uniform": 4, "parameters": 7, "layers": 4}
    assert solve(p, "tree").assignment.stage.tolist() == [0] * 6 + [1] * 2


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n, k", [(1, 1), (4, 4), (9, 1), (30, 7)])
def test_every_method_fills_every_stage(method, n, k):
    p = replace(chain(n, k), scopes=tuple(f"layer.{c // 3}" for c in range(n)))
    solution = solve(p, method)
    assert not solution.evaluation.faults
    assert solution.lower_bound_seconds <= solution.evaluation.bottleneck_seconds * (1 + 1e-9)


@pytest.mark.parametrize("method", ("auto", "metis", "exact"))
def test_the_same_problem_gets_the_same_answer(method):
    p = random_problem(7, 24, 3, density=0.1)
    p = replace(p, memory_limit_bytes=np.full(3, np.inf))
    first, second = solve(p, method, 60.0), solve(p, method, 60.0)
    assert first.assignment.stage.tolist() == second.assignment.stage.tolist()
    assert not first.stopped_by_clock


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1e15, 1e30])
def test_huge_and_tiny_costs(scale):
    p = chain(60, 4)
    scaled = replace(
        p,
        forward_seconds=p.forward_seconds * scale,
        value_forward_bytes=p.value_forward_bytes * scale,
    )
    expected = solve(p, "metis").evaluation.bottleneck_seconds
    reached = solve(scaled, "metis").evaluation.bottleneck_seconds
    assert reached == pytest.approx(expected * scale, rel=0.02)


def test_zero_costs_and_disconnected_clusters():
    p = problem(3, [0.0] * 20, [], [])
    for method in SEARCHING:
        solution = solve(p, method)
        assert solution.evaluation.bottleneck_seconds == 0
        assert solution.optimal


def test_one_giant_among_dwarfs():
    p = problem(4, [1000.0] + [0.001] * 99, [(c, c + 1) for c in range(99)])
    solution = solve(p)
    assert solution.evaluation.bottleneck_seconds == pytest.approx(1000.1)
    assert solution.gap < 0.001


def test_skips_from_all_to_all():
    n = 16
    p = problem(4, [1.0] * n, [(a, b) for b in range(n) for a in range(b)])
    solution = solve(p, "exact")
    assert solution.optimal
    assert (
        solution.evaluation.bottleneck_seconds <= solve(p, "uniform").evaluation.bottleneck_seconds
    )


@pytest.mark.parametrize("seed", range(20))
def test_polish_never_makes_worse(seed):
    p = random_problem(seed, 14, 3)
    try:
        names = dict(orders(p))
    except InfeasibleError:
        pytest.skip("this seed's pins contradict its edges")
    stage = np.minimum(np.arange(14) * 3 // 14, 2)
    given = Assignment(stage[np.argsort(names["program"])])
    before, after = score(evaluate(p, given)), score(evaluate(p, polish(p, given)))
    assert after <= before


def test_orders_are_topological_and_keep_pinned_stages_apart():
    for seed in range(40):
        p = random_problem(seed, 15, 3)
        pins = np.full(15, -1)
        pins[[2, 9, 12]] = [0, 1, 2]
        p = replace(p, pins=pins)
        for name, order in orders(p):
            position = np.argsort(order)
            assert sorted(order) == list(range(15)), name
            assert (position[p.edges[:, 0]] < position[p.edges[:, 1]]).all(), name
            assert position[2] < position[9] < position[12]


def towers(seed, n_towers, depth, k):
    """Chains side by side, written layer by layer, with dear and unequal transfers."""
    draw = np.random.default_rng(seed)
    n = 2 + n_towers * depth
    ends = [(0, 1 + t) for t in range(n_towers)] + [(n - 2 - t, n - 1) for t in range(n_towers)]
    edges = sorted(ends + [(c, c + n_towers) for c in range(1, n - 1 - n_towers)])
    seconds = draw.uniform(1, 3, n).tolist()
    users = [[b for a, b in edges if a == c] for c in range(n - 1)]
    values = [((c, *after), float(draw.uniform(1, 6))) for c, after in enumerate(users)]
    return problem(k, [0.1, *seconds[1:-1], 0.1], edges, values)


def test_where_metis_wins_auto_takes_its_cut_or_better():
    p = towers(3, 4, 12, 4)
    by = {m: solve(p, m).evaluation.bottleneck_seconds for m in ("dp", "metis")}
    assert by["metis"] < by["dp"] * 0.99
    found = solve(p)
    assert found.method != "dp"
    assert found.evaluation.bottleneck_seconds <= by["metis"]
    tried = {trial.method: trial.bottleneck_seconds for trial in found.trials}
    assert tried["metis"] < tried["dp"]


def test_explain_says_what_each_boundary_would_do():
    p = problem(3, [1, 1, 1, 1, 1, 1], LINE)
    told = explain(p, solve(p).assignment, 1)
    assert told.bottleneck_stage == 1
    assert told.compute_seconds == 2
    assert {(s.source, s.destination) for s in told.shifts} == {(1, 0), (1, 2), (0, 1), (2, 1)}
    assert all(s.change_seconds == pytest.approx(0.9) or s.change_seconds == 1 for s in told.shifts)
    with pytest.raises(ArgumentError, match="no stage 3"):
        explain(p, solve(p).assignment, 3)


def test_explained_moves_are_the_best_single_ones():
    """Against every single move over a boundary of the stage, scored one by one."""
    for seed in range(60):
        p = random_problem(seed, 8, 3)
        assert (p.forward_seconds + p.backward_seconds > 0).all()
        now = uniform(p)
        before = evaluate(p, now)
        for k in range(3):
            told = explain(p, now, k)
            for a, b in ((k - 1, k), (k, k - 1), (k, k + 1), (k + 1, k)):
                found = [s for s in told.shifts if (s.source, s.destination) == (a, b)]
                scored = _moves(p, now.stage, a, b)
                assert bool(found) == bool(scored)
                if not scored:
                    continue
                shift, fine = found[0], [e for e in scored if not e.faults]
                best = min(e.bottleneck_seconds for e in fine or scored)
                assert bool(shift.faults) == (not fine)
                assert shift.bottleneck_seconds == best
                assert shift.change_seconds == best - before.bottleneck_seconds


def test_what_takes_no_time_comes_along():
    p = problem(2, [1, 3, 0, 2], [(0, 1), (1, 2), (2, 3)])
    told = explain(p, Assignment(np.asarray([0, 0, 1, 1])), 0)
    back = next(shift for shift in told.shifts if shift.source == 1)
    assert back.clusters == (2, 3)
    assert back.faults == ("stage 1 is empty",)


def _moves(p, stage, source, destination):
    """The score of each move of one cluster that keeps the order; none where there is no stage."""
    if not 0 <= min(source, destination) <= max(source, destination) < p.n_stages:
        return []
    found = []
    for cluster in np.flatnonzero(stage == source):
        moved = stage.copy()
        moved[cluster] = destination
        if (moved[p.edges[:, 0]] <= moved[p.edges[:, 1]]).all():
            found.append(evaluate(p, Assignment(moved)))
    return found


def test_what_a_method_does_not_find_is_not_called_impossible():
    """Stage 1 takes c or d, which come after b in the orders that dp cuts."""
    p = problem(4, [1.0] * 4, [(0, 1), (0, 2), (0, 3)], pins=[0, 2, -1, -1])
    with pytest.raises(InfeasibleError, match=r"'dp' cuts a few orders.*'auto' looks further"):
        solve(p, "dp")
    assert solve(p, "auto").optimal and solve(p, "exact").optimal


def test_nothing_to_cut():
    with pytest.raises(InfeasibleError, match="nothing to cut: no op"):
        solve(problem(2, []))


def test_a_trial_that_offers_nothing_is_not_called_infeasible():
    search = Search(chain(20, 2), np.inf)
    search.raise_bound(1.0)
    with search.trial("first"):
        search.offer(Assignment(np.arange(20) // 10))
    with search.trial("second"):
        pass
    assert search.solution().trials[1].note == "nothing better found"


def test_arguments():
    p = problem(2, [1, 1], [(0, 1)])
    with pytest.raises(ArgumentError, match="methods are auto, dp"):
        solve(p, "best")
    with pytest.raises(ArgumentError, match="time_limit"):
        solve(p, time_limit=0)
    with pytest.raises(ArgumentError, match="module names"):
        solve(p, "tree")


def test_trials_tell_what_was_tried():
    solution = solve(chain(50, 4), "exact")
    assert [trial.method for trial in solution.trials] == ["dp", "metis", "exact"]
    assert all(np.isfinite(trial.bottleneck_seconds) for trial in solution.trials)
