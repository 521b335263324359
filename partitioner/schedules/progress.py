"""Executes an action list's waiting rules, and nothing else: what can run, in which order.

    a send or receive   posts, and never waits
    a message           completes once both ends are posted and every earlier message on the same
                        ordered pair of devices has completed (rendezvous: nothing is buffered)
    a compute           waits for the completion of the receives it needs

Posts and completions only ever enable more, so every maximal run executes the same actions: one
run decides whether the list deadlocks. The j-th message of a channel is complete exactly when more
than j sends and more than j receives are posted there, so a channel's state is two counters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from stagecut.ir.schedule import Action, ActionList, Compute, Message, Send
from stagecut.partitioner.schedules.stage_graph import StageGraph, stage_graph

Wait = tuple[int, int]
"""(channel, j): the j-th message of a channel."""
COMPUTE, SEND, RECEIVE = 0, 1, 2
Step = tuple[int, int, tuple[Wait, ...]]
"""One action: what it is; the channel of a post; what a compute waits for."""


@dataclass(frozen=True, slots=True)
class Program:
    """An action list resolved to channels and counters."""

    devices: tuple[tuple[Step, ...], ...]
    """One step an action, in the order of the action list."""
    channels: tuple[tuple[int, int], ...]
    """For each channel: the device that sends and the one that receives."""


def resolve(action_list: ActionList) -> Program:
    """Numbers the channels, and the messages on each in receiving order; O(actions).

    Every receive that a compute needs must stand before it: `check` reports those that do not.
    """
    owner = action_list.schedule.device_of_stage
    graph = stage_graph(owner, action_list.edges)
    channels: dict[tuple[int, int], int] = {}
    devices = tuple(_steps(acts, graph, owner, channels) for acts in action_list.devices)
    return Program(devices, tuple(channels))


def _steps(
    actions: tuple[Action, ...],
    graph: StageGraph,
    owner: tuple[int, ...],
    channels: dict[tuple[int, int], int],
) -> tuple[Step, ...]:
    steps: list[Step] = []
    arrives: dict[Message, Wait] = {}
    received: dict[int, int] = {}
    for action in actions:
        if isinstance(action, Compute):
            steps.append((COMPUTE, -1, tuple(arrives[needed] for needed in graph.needs(action))))
            continue
        message = action.message
        ends = owner[message.source], owner[message.destination]
        channel = channels.setdefault(ends, len(channels))
        if isinstance(action, Send):
            steps.append((SEND, channel, ()))
            continue
        index = received.get(channel, 0)
        arrives[message] = channel, index
        received[channel] = index + 1
        steps.append((RECEIVE, channel, ()))
    return tuple(steps)


def walk(program: Program) -> Iterator[tuple[int, int]]:
    """Yields (device, position) of every action that can run, each after all it waits for.

    A device whose actions do not all appear is stuck at the first that is missing.
    """
    sent, received = [0] * len(program.channels), [0] * len(program.channels)
    position = [0] * len(program.devices)
    waits_on = [-1] * len(program.devices)
    ready = deque(range(len(program.devices)))
    while ready:
        device = ready.popleft()
        steps = program.devices[device]
        while position[device] < len(steps):
            kind, channel, waits = steps[position[device]]
            if kind == COMPUTE:
                blocked = [c for c, j in waits if sent[c] <= j or received[c] <= j]
                if blocked:
                    waits_on[device] = blocked[0]
                    break
            elif kind == RECEIVE:
                received[channel] += 1
            else:
                sent[channel] += 1
                receiver = program.channels[channel][1]
                if waits_on[receiver] == channel:
                    waits_on[receiver] = -1
                    ready.append(receiver)
            yield device, position[device]
            position[device] += 1
