"""A third of the cases on real processes over gloo, a process a stage."""

from __future__ import annotations

import pytest

import stagecut
from tests.cases.table import TABLE, built
from tests.support.equality import assert_trained_alike, cut, train_pipeline, train_unsplit
from tests.support.ranks import results, run_ranks

STEPS = 3
WORLDS = {
    world: [name for name, entry in TABLE.items() if entry.distributed == world]
    for world in (2, 3, 4)
}


def train_all(rank: int, names: list[str]) -> list[str]:
    """Every rank trains its stages of each case and compares them with the unsplit model."""
    for name in names:
        entry, case = TABLE[name], built(name)
        want = train_unsplit(case, entry.n_microbatches, STEPS, entry.optimizer)
        args, kwargs, _ = cut((case.args, case.kwargs, case.target), entry.n_microbatches)[0]
        plan = stagecut.partition(
            case.model, entry.distributed or 2, args, kwargs,
            n_microbatches=entry.n_microbatches, schedule=entry.schedule,
        )  # fmt: skip
        pipe = stagecut.pipeline(plan, case.model, loss_fn=case.loss)
        assert list(pipe.runtime.runners) == [rank]
        got = train_pipeline(case, pipe, STEPS, entry.optimizer)
        try:
            assert_trained_alike(got, want, whole=False)
        except AssertionError as error:
            raise AssertionError(f"{name} on rank {rank}: {error}") from error
    return names


@pytest.mark.parametrize("world", WORLDS)
def test_trains_as_the_unsplit_model(world: int) -> None:
    names = WORLDS[world]
    assert results(run_ranks(world, train_all, names, seconds=240)) == [names] * world


def test_a_third_of_the_cases_runs_on_processes() -> None:
    assert 3 * sum(map(len, WORLDS.values())) >= len(TABLE)
