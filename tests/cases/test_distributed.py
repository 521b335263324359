"""Every case on real processes over gloo, a process a stage.

Each is planned once, here, and the ranks read the plan; that ranks may also plan for themselves is
tried with a few.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import stagecut
from tests.cases.table import TABLE, built, planned
from tests.support.equality import (
    assert_answers_alike,
    assert_trained_alike,
    train_pipeline,
    train_unsplit,
)
from tests.support.ranks import results, run_ranks

STEPS = 3
WORLDS = {
    world: [name for name, entry in TABLE.items() if entry.distributed == world]
    for world in (2, 3, 4)
}
PLANNED_BY_EACH = ("target", "tied", "norms")


def run_all(rank: int, names: list[str], folder: str) -> list[str]:
    """Every rank runs its stages of each case and compares them with the unsplit model."""
    for name in names:
        try:
            _run(rank, name, folder)
        except Exception as error:
            raise AssertionError(f"{name} on rank {rank}: {error}") from error
    return names


def _run(rank: int, name: str, folder: str) -> None:
    entry, case = TABLE[name], built(name)
    if name in PLANNED_BY_EACH:
        plan = planned(name, entry.distributed)
    else:
        plan = stagecut.Plan.load(Path(folder, f"{name}.json"))
    want = entry.training and train_unsplit(case, entry.n_microbatches, STEPS, entry.optimizer)
    pipe = stagecut.pipeline(plan, case.model, loss_fn=case.loss)
    assert list(pipe.runtime.runners) == [rank]
    if want:
        got = train_pipeline(case, pipe, STEPS, entry.optimizer)
        assert_trained_alike(got, want, whole=False)
    else:
        assert_answers_alike(case, pipe, entry.n_microbatches)


@pytest.mark.parametrize("world", WORLDS)
def test_runs_as_the_unsplit_model(world: int, tmp_path: Path) -> None:
    names = WORLDS[world]
    for name in names:
        if name not in PLANNED_BY_EACH:
            planned(name, world).save(tmp_path / f"{name}.json")
    ended = run_ranks(world, run_all, names, str(tmp_path), seconds=300)
    assert results(ended) == [names] * world


def test_every_case_runs_on_processes() -> None:
    assert sum(map(len, WORLDS.values())) == len(TABLE)
