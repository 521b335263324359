"""The rules about messages: each is sent and received once, channels match, nothing deadlocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from stagecut.ir.schedule import Action, ActionList, Compute, Message, Receive, Send
from stagecut.partitioner.schedules.fault import Fault, placed
from stagecut.partitioner.schedules.grid import Mark
from stagecut.partitioner.schedules.progress import resolve, walk
from stagecut.partitioner.schedules.stage_graph import StageGraph, stage_graph

Posts = dict[Message, list[Mark]]


def messages(action_list: ActionList) -> Iterator[Fault]:
    """Every message that the computes need stands once at each end, and no other does.

    A send stands after the compute that makes its message, a receive before the one that needs it.
    """
    graph = stage_graph(action_list.schedule.device_of_stage, action_list.edges)
    sends, receives = _posts(action_list, Send), _posts(action_list, Receive)
    made, needed = _made_and_needed(action_list, graph)
    yield from _once(action_list, sends, made, "sent")
    yield from _once(action_list, receives, needed, "received")
    for message, mark in made.items():
        if message in sends and min(sends[message]) < mark:
            yield Fault(f"{message} is sent before it is computed", (mark, *sends[message]))
    for message, mark in needed.items():
        if message in receives and min(receives[message]) > mark:
            yield Fault(f"{message} is received after it is needed", (mark, *receives[message]))


def _posts(action_list: ActionList, way: type[Send] | type[Receive]) -> Posts:
    posts: Posts = defaultdict(list)
    for mark, action in placed(action_list):
        if isinstance(action, way):
            posts[action.message].append(mark)
    return posts


def _made_and_needed(
    action_list: ActionList, graph: StageGraph
) -> tuple[dict[Message, Mark], dict[Message, Mark]]:
    made: dict[Message, Mark] = {}
    needed: dict[Message, Mark] = {}
    for mark, action in placed(action_list):
        if isinstance(action, Compute):
            made.update(dict.fromkeys(graph.makes(action), mark))
            needed.update(dict.fromkeys(graph.needs(action), mark))
    return made, needed


def _once(
    action_list: ActionList, posts: Posts, wanted: dict[Message, Mark], verb: str
) -> Iterator[Fault]:
    for message, mark in wanted.items():
        if message not in posts:
            yield Fault(f"{message} is never {verb}", (mark,))
    for message, marks in posts.items():
        if message not in wanted:
            yield Fault(f"{message} is {verb}, and no edge or compute calls for it", tuple(marks))
        elif len(marks) > 1:
            yield Fault(f"{message} is {verb} {len(marks)} times", tuple(marks))


def channels(action_list: ActionList) -> Iterator[Fault]:
    """Each ordered pair of devices posts its sends and its receives in one order."""
    sends, receives = _per_channel(action_list, Send), _per_channel(action_list, Receive)
    for ends in sorted(sends.keys() | receives.keys()):
        for (left, sent), (right, received) in zip(sends[ends], receives[ends], strict=False):
            if sent != received:
                yield Fault(
                    f"device {ends[0]} sends {sent} where device {ends[1]} receives {received}",
                    (left, right),
                )
                break


def _per_channel(
    action_list: ActionList, way: type[Send] | type[Receive]
) -> dict[tuple[int, int], list[tuple[Mark, Message]]]:
    owner = action_list.schedule.device_of_stage
    posts: dict[tuple[int, int], list[tuple[Mark, Message]]] = defaultdict(list)
    for mark, action in placed(action_list):
        if isinstance(action, way):
            message = action.message
            posts[owner[message.source], owner[message.destination]].append((mark, message))
    return posts


def progress(action_list: ActionList) -> Iterator[Fault]:
    """Every action runs under rendezvous semantics."""
    reached = [0] * len(action_list.devices)
    for device, position in walk(resolve(action_list)):
        reached[device] = position + 1
    stuck = [d for d, actions in enumerate(action_list.devices) if reached[d] < len(actions)]
    if not stuck:
        return
    graph = stage_graph(action_list.schedule.device_of_stage, action_list.edges)
    posted = {
        action
        for actions, end in zip(action_list.devices, reached, strict=True)
        for action in actions[:end]
        if not isinstance(action, Compute)
    }
    for device in stuck:
        waiting = action_list.devices[device][reached[device]]
        reason = f"waits at {waiting} for {_missing(waiting, graph, posted)}"
        yield Fault(f"deadlock: device {device} {reason}", ((device, reached[device]),))


def _missing(waiting: Action, graph: StageGraph, posted: set[Send | Receive]) -> str:
    needs = graph.needs(waiting) if isinstance(waiting, Compute) else []
    late = [message for message in needs if Send(message) not in posted]
    names = ", ".join(map(str, late or needs))
    return f"{names}, not yet sent" if late else f"{names}, behind an unfinished message"
