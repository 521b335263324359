"""The search against trying everything, and what it says where nothing fits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stagecut.ir.device import Cluster
from stagecut.ir.devices import cluster
from stagecut.ir.errors import ArgumentError, InfeasibleError
from stagecut.ir.problem import Incidence, Problem, Relief
from stagecut.ir.schedule import Schedule, StageEdge
from stagecut.ir.timeline import StepCosts
from stagecut.partitioner.planning import Choice, Costed, Setting, Space, between, choices, search
from stagecut.partitioner.planning.costing import (
    device_bytes,
    least_seconds,
    quick_cut,
    quick_relieved_cut,
    recomputing,
    resized,
    step_costs,
)
from stagecut.partitioner.planning.search import SIMULATED
from stagecut.partitioner.relief import bought
from stagecut.partitioner.schedules import expand, in_flight, make_schedule, simulate

N = 32
DEVICES: Cluster = cluster("A100-80GB", 8)


def chain(rows: int, again: bool = True) -> Costed:
    """A chain of alike ops, whose costs are straight in the rows; the first has one tied weight."""
    seconds = np.full((1, N), 1e-3 * rows + 1e-4)
    problem = Problem(
        n_stages=1,
        names=tuple(f"op_{i}" for i in range(N)),
        forward_seconds=seconds,
        backward_seconds=2 * seconds,
        edges=np.array([(i, i + 1) for i in range(N - 1)]),
        values=Incidence.of([[i, i + 1] for i in range(N - 1)]),
        value_forward_bytes=np.full(N - 1, 1e6 * rows),
        value_backward_bytes=np.full(N - 1, 1e6 * rows),
        weights=Incidence.of([[i] for i in range(N)]),
        weight_bytes=np.full(N, 1e9),
        weight_sync_seconds=np.zeros(N),
        saved=Incidence.of([[i] for i in range(N)]),
        saved_bytes=np.full(N, 2e8 * rows),
        workspace_bytes=np.zeros(N),
        pins=np.full(N, -1),
        device_kind=np.zeros(1, dtype=np.int64),
        memory_limit_bytes=np.full(1, np.inf),
        in_flight=np.ones(1, dtype=np.int64),
        link_latency_seconds=np.zeros((1, 1)),
        link_seconds_per_byte=np.zeros((1, 1)),
    )
    relief = Relief(seconds, np.full(N, 1.9e8 * rows), np.full(N, 1.9e8 * rows), 1.9e8 * rows)
    kinds = (DEVICES.devices[0].name,)
    return Costed(problem, kinds, seconds[0], 0.25, relief=relief if again else None)


def part(replicas: int) -> Cluster:
    return replace(DEVICES, devices=DEVICES.devices[::replicas])


def setting(limit: float, again: bool = True) -> Setting:
    return Setting(
        lambda rows: chain(rows, again),
        part,
        lambda r: None if r == 1 else (lambda n_bytes: n_bytes / 1e11),
        limit,
    )


def space(**given: object) -> Space:
    base = Space(8, None, None, None, 32, 1, True, True)
    return replace(base, **given)  # type: ignore[arg-type]


def brute_force(choice: Choice, limit: float) -> float:
    """The whole step, simulated; infinity where it does not fit."""
    costed = chain(choice.rows)
    problem = resized(costed, part(choice.replicas), choice.n_stages, None)
    schedule = make_schedule(
        choice.schedule, choice.n_stages, choice.n_devices, choice.n_microbatches
    )
    assert schedule.device_of_stage == choice.device_of_stage
    limits = np.full(choice.n_stages, limit * choice.n_devices / choice.n_stages)
    limited = replace(problem, memory_limit_bytes=limits, in_flight=np.asarray(in_flight(schedule)))
    assert costed.relief is not None
    sums = setting(limit).sums(choice.replicas)
    found = []
    for stage in (quick_cut(problem), quick_cut(limited)):
        if stage is not None:
            found.append(step_costs(costed, problem, stage, sums))
    stage = quick_relieved_cut(limited, costed.relief)
    if stage is not None:
        extra = bought(limited, stage, costed.relief)
        found.append(recomputing(step_costs(costed, problem, stage, sums), extra))
    return next(
        (_simulated(choice, schedule, costs) for costs in found
         if (device_bytes(schedule, costs) <= limit * (1 + 1e-9)).all()),
        float("inf"),
    )  # fmt: skip


def _simulated(choice: Choice, schedule: Schedule, costs: StepCosts) -> float:
    edges = [StageEdge(e.source, e.destination, True) for e in costs.edges]
    seconds = simulate(expand(schedule, edges, ahead=1), costs).step_seconds
    halves = choice.schedule in ("zero_bubble", "zb_v", "dualpipe_v")
    least = least_seconds(costs, choice.device_of_stage, choice.n_microbatches, halves)
    assert least <= seconds * (1 + 1e-9)
    return seconds


@pytest.mark.parametrize("limit", [80e9, 12e9, 9e9])
def test_the_chosen_is_the_best_of_all(limit: float) -> None:
    found = choices(space())
    table = search(found, setting(limit))
    best = min(brute_force(choice, limit) for choice in found)
    assert table[0].note == "chosen"
    assert table[0].step_seconds <= best * (1 + 1e-9)
    assert table[0].memory_bytes <= limit * (1 + 1e-9)
    assert len(table) == len(found)
    assert all(row.note for row in table)
    simulated = [row.step_seconds for row in table if row.note.endswith("slower")]
    assert simulated == sorted(simulated)


def test_less_memory_means_recomputing_or_smaller_micro_batches() -> None:
    rich, poor = (search(choices(space()), setting(limit))[0] for limit in (80e9, 9e9))
    assert poor.step_seconds >= rich.step_seconds
    assert poor.memory_bytes <= 9e9 < rich.memory_bytes or poor == rich


def test_stages_recompute_where_that_is_faster_than_smaller_micro_batches() -> None:
    found = choices(space(batch_size=64, n_microbatches=8, replicas=1))
    with pytest.raises(InfeasibleError):
        search(found, setting(8e9, again=False))
    best = search(found, setting(8e9))[0]
    assert best.recompute
    assert best.memory_bytes <= 8e9 * (1 + 1e-9)
    assert not search(found, setting(80e9))[0].recompute


def test_where_nothing_fits_it_says_what_is_too_big() -> None:
    with pytest.raises(InfeasibleError, match=r"none of \d+ choices fits.*optimizer state"):
        search(choices(space()), setting(3e9))


def test_a_long_step_carried_on_at_its_rate_is_close() -> None:
    choice = Choice("1f1b", 1, 8, 4000, 1)
    assert choice.n_stages * choice.n_microbatches > SIMULATED
    row = search([choice], setting(1e12))[0]
    assert row.step_seconds == pytest.approx(brute_force(choice, 1e12), rel=1e-6)


def test_costs_between_sizes_are_on_a_line() -> None:
    known = {rows: chain(rows) for rows in (2, 8)}
    for rows in (1, 2, 5, 16):
        found = between(known, rows)
        assert found is not None
        np.testing.assert_allclose(
            found.problem.forward_seconds, chain(rows).problem.forward_seconds
        )
        np.testing.assert_allclose(found.problem.saved_bytes, chain(rows).problem.saved_bytes)
    assert between({2: chain(2)}, 4) is None


def test_choices_share_the_batch_out() -> None:
    for choice in choices(space()):
        assert choice.replicas * choice.n_microbatches * choice.rows == 32
        assert choice.replicas * choice.n_devices == 8
    fixed = choices(space(replicas=2, n_microbatches=4, schedule="gpipe"))
    assert fixed == (Choice("gpipe", 2, 4, 4, 4),)
    alone = {choice.schedule for choice in choices(space()) if choice.n_devices == 1}
    assert alone == {"1f1b"}
    inference = choices(space(training=False))
    assert {choice.schedule for choice in inference} == {"forward"}
    with pytest.raises(ArgumentError, match="no way to cut a batch of 32 rows"):
        choices(space(n_microbatches=7))
    with pytest.raises(ArgumentError, match="into 5 rows each, as traced"):
        choices(space(rows=5, any_rows=False))
