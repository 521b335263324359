"""Sends follow their compute; receives keep the channel's order and come no later than needed."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest

from stagecut.ir.errors import ArgumentError
from stagecut.ir.schedule import Compute, Message, Phase, Receive, Send, StageEdge
from stagecut.partitioner.schedules import expand, make_schedule
from tests.partitioner.schedules.random_lists import random_edges, random_schedule
from tests.partitioner.schedules.support import chain, listed


def random_list(seed: int, ahead: int = 0):
    random = Random(seed)
    k = random.randint(1, 6)
    edges = random_edges(random, k)
    schedule = random_schedule(random, edges, k, random.randint(1, k), 3)
    return expand(schedule, edges, ahead)


def test_the_drawn_list() -> None:
    got = listed(["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"], (0, 1), 2, chain(2)).devices
    assert " ".join(map(str, got[0])) == "0F0 0>1F0! 0F1 0>1F1! 1>0B0? 0B0 1>0B1? 0B1"
    assert " ".join(map(str, got[1])) == "0>1F0? 1F0 1B0 1>0B0! 0>1F1? 1F1 1B1 1>0B1!"


def test_a_receive_that_is_needed_early_pulls_forward_those_sent_before_it() -> None:
    got = listed(["0F0 0F1", "1F1 1F0"], (0, 1), 2, chain(2)).devices
    assert " ".join(map(str, got[1])) == "0>1F0? 0>1F1? 1F1 1F0"


def test_stages_of_one_device_exchange_nothing() -> None:
    got = expand(make_schedule("gpipe", 3, 1, 2), chain(3))
    assert all(isinstance(action, Compute) for action in got.devices[0])


def test_no_gradients_where_none_come_back() -> None:
    got = expand(make_schedule("1f1b", 2, 2, 3), [StageEdge(0, 1, False)])
    posts = [a.message.phase for row in got.devices for a in row if not isinstance(a, Compute)]
    assert posts == [Phase.FORWARD] * 6


def test_twin_edges_are_one() -> None:
    twins = [StageEdge(0, 1, False), StageEdge(0, 1, True)]
    assert expand(make_schedule("1f1b", 2, 2, 1), twins).edges == (StageEdge(0, 1, True),)


@pytest.mark.parametrize(
    "edge", [StageEdge(1, 0, True), StageEdge(0, 0, True), StageEdge(0, 2, True)]
)
def test_edges_that_do_not_go_forward_are_refused(edge) -> None:
    with pytest.raises(ArgumentError, match="higher"):
        expand(make_schedule("1f1b", 2, 2, 1), [edge])


@pytest.mark.parametrize("seed", range(60))
def test_sends_stand_right_after_the_compute_that_makes_them(seed) -> None:
    for row in random_list(seed).devices:
        maker = None
        for action in row:
            if isinstance(action, Compute):
                maker = action
            elif isinstance(action, Send):
                phase = Phase.BACKWARD if maker.phase is Phase.BACKWARD_INPUT else maker.phase
                message = action.message
                made = (message.source, message.phase, message.microbatch)
                assert made == (maker.stage, phase, maker.microbatch)
            else:
                maker = None


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("seed", range(60))
def test_receives_keep_the_order_of_sends_and_stand_at_the_earliest_need(seed, ahead) -> None:
    got = random_list(seed, ahead)
    sent = channel_messages(got, Send)
    assert sent == channel_messages(got, Receive)
    for device, row in enumerate(got.devices):
        need = needs(got, row)
        stands, computes = {}, 0
        for action in row:
            if isinstance(action, Receive):
                stands[action.message] = computes
            computes += isinstance(action, Compute)
        for ends, messages in sent.items():
            for j, message in enumerate(messages if ends[1] == device else []):
                assert stands[message] == max(min(need[later] for later in messages[j:]) - ahead, 0)


def channel_messages(action_list, way) -> dict[tuple[int, int], list[Message]]:
    owner = action_list.schedule.device_of_stage
    found = defaultdict(list)
    for row in action_list.devices:
        for action in row:
            if isinstance(action, way):
                ends = owner[action.message.source], owner[action.message.destination]
                found[ends].append(action.message)
    return dict(found)


def needs(action_list, row) -> dict[Message, int]:
    need = {}
    for position, c in enumerate(a for a in row if isinstance(a, Compute)):
        for e in action_list.edges:
            if c.phase is Phase.FORWARD and e.destination == c.stage:
                need[Message(e.source, c.stage, c.phase, c.microbatch)] = position
            if c.phase in (Phase.BACKWARD, Phase.BACKWARD_INPUT) and e.source == c.stage:
                need[Message(e.destination, c.stage, Phase.BACKWARD, c.microbatch)] = position
    return need
