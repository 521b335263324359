"""The checker and a real executor without buffers agree, list by list."""

from __future__ import annotations

from random import Random

import pytest

from stagecut.ir.errors import ScheduleError
from stagecut.partitioner.schedules import check, expand
from tests.partitioner.schedules.random_lists import (
    random_action_list,
    random_edges,
    random_schedule,
)
from tests.partitioner.schedules.rendezvous import Failure, execute


def accepted(action_list) -> str:
    try:
        check(action_list)
    except ScheduleError as error:
        return str(error).splitlines()[0]
    return ""


def executed(action_list) -> str:
    try:
        execute(action_list)
    except Failure as failure:
        return str(failure)
    return ""


def test_checker_agrees_with_rendezvous_executor_on_1000_lists() -> None:
    verdicts = []
    rules = set()
    for seed in range(1000):
        action_list = random_action_list(Random(seed))
        refusal, failure = accepted(action_list), executed(action_list)
        rows = "\n".join(" ".join(map(str, row)) for row in action_list.devices)
        assert bool(refusal) == bool(failure), (
            f"seed {seed}\nchecker: {refusal or 'fine'}\nexecutor: {failure or 'fine'}\n"
            f"{action_list.edges}\n{rows}"
        )
        verdicts.append(not refusal)
        rules.add(refusal.rpartition("rule: ")[2].rstrip(")"))
    assert 250 < sum(verdicts) < 750, "the sample has too few of one kind to mean anything"
    broken = {"completeness", "placement", "order", "messages", "channels", "progress"}
    assert broken <= rules, f"no sample broke {broken - rules}"


@pytest.mark.parametrize("seed", range(100))
def test_every_topological_order_passes(seed: int) -> None:
    random = Random(seed)
    k = random.randint(1, 7)
    edges = random_edges(random, k)
    schedule = random_schedule(random, edges, k, random.randint(1, k), random.randint(1, 5))
    check(expand(schedule, edges))
