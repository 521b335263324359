"""Runs an action list with one thread a device and real rendezvous: the checker's oracle.

Written from the semantics alone, it shares no code with the checker. Posting a send or a receive
leaves a handle in its channel and returns; the payload moves from hand to hand when both ends are
at the head of the channel, and is stored nowhere in between. A compute blocks until the receives
it needs are done. Stages compute numbers, compared with those of one process that has it all.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from dataclasses import dataclass

from stagecut.ir.schedule import ActionList, Compute, Message, Phase, Receive, Send

PRIME = 2_147_483_647
Key = tuple[str, int, int]


class Failure(Exception):
    """The list does not do a pipeline's work."""


@dataclass
class Handle:
    message: Message
    payload: int | None = None
    done: bool = False


def execute(action_list: ActionList) -> None:
    """Raises Failure if the list hangs, mixes values up, or leaves anything undone."""
    world = World(action_list)
    threads = [
        threading.Thread(target=world.run, args=(device,), daemon=True)
        for device in range(len(action_list.devices))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    world.conclude()


class World:
    def __init__(self, action_list: ActionList) -> None:
        self.list = action_list
        self.owner = action_list.schedule.device_of_stage
        self.changed = threading.Condition()
        self.sends: dict[tuple[int, int], deque[Handle]] = defaultdict(deque)
        self.receives: dict[tuple[int, int], deque[Handle]] = defaultdict(deque)
        self.blocked: dict[int, Handle] = {}
        self.alive = len(action_list.devices)
        self.failures: list[str] = []
        self.results: dict[Key, int] = {}

    def run(self, device: int) -> None:
        values: dict[Key, int] = {}
        posted: dict[Message, Handle] = {}
        try:
            for action in self.list.devices[device]:
                with self.changed:
                    if isinstance(action, Compute):
                        self.compute(device, action, values, posted)
                    else:
                        self.post(device, action, values, posted)
        except (Failure, IndexError) as failure:
            with self.changed:
                self.failures.append(str(failure))
        with self.changed:
            self.results.update(values)
            self.alive -= 1
            self.detect_deadlock()
            self.changed.notify_all()

    def post(self, device: int, action: Send | Receive, values: dict, posted: dict) -> None:
        message = action.message
        ends = self.owner[message.source], self.owner[message.destination]
        if ends[0] == ends[1] or ends[isinstance(action, Receive)] != device:
            raise Failure(f"{action} is not for device {device}")
        handle = Handle(message)
        if isinstance(action, Send):
            key = (message.phase.value, message.source, message.microbatch)
            if key not in values:
                raise Failure(f"{action} before its value")
            handle.payload = gradient_to(message, values)
            self.sends[ends].append(handle)
        else:
            posted.setdefault(message, handle)
            self.receives[ends].append(handle)
        self.match(ends)

    def match(self, ends: tuple[int, int]) -> None:
        sends, receives = self.sends[ends], self.receives[ends]
        while sends and receives:
            sent, received = sends.popleft(), receives.popleft()
            if sent.message != received.message:
                raise Failure(f"{sent.message} arrives as {received.message}")
            received.payload, sent.payload = sent.payload, None
            sent.done = received.done = True
            self.changed.notify_all()

    def wait(self, device: int, handle: Handle) -> int:
        self.blocked[device] = handle
        self.detect_deadlock()
        while not handle.done and not self.failures:
            self.changed.wait()
        del self.blocked[device]
        if not handle.done:
            raise Failure("another device failed")
        assert handle.payload is not None
        return handle.payload

    def detect_deadlock(self) -> None:
        waiting = [handle for handle in self.blocked.values() if not handle.done]
        if self.alive and len(waiting) == self.alive:
            self.failures.append("deadlock")
            self.changed.notify_all()

    def compute(self, device: int, action: Compute, values: dict, posted: dict) -> None:
        stage, phase, microbatch = action.stage, action.phase, action.microbatch
        if not 0 <= microbatch < self.list.schedule.n_microbatches or self.owner[stage] != device:
            raise Failure(f"{action} does not belong to device {device}")
        letter = {"I": "B"}.get(phase.value, phase.value)
        key = (letter, stage, microbatch)
        if key in values or (letter == "W" and ("whole", stage, microbatch) in values):
            raise Failure(f"{action} again")
        if letter == "W":
            if ("B", stage, microbatch) not in values:
                raise Failure(f"{action} before its input half")
            values[key] = 0
            return
        if letter == "B" and ("F", stage, microbatch) not in values:
            raise Failure(f"{action} before its forward")
        if phase is Phase.BACKWARD:
            values["whole", stage, microbatch] = 0
        inputs = 0
        for edge in self.list.edges:
            source, here = (edge.source, edge.destination)[:: 1 if letter == "F" else -1]
            if here != stage or (letter == "B" and not edge.gradient):
                continue
            message = Message(source, stage, Phase(letter), microbatch)
            inputs += self.fetch(device, message, values, posted)
        values[key] = result(letter, stage, microbatch, inputs)

    def fetch(self, device: int, message: Message, values: dict, posted: dict) -> int:
        if self.owner[message.source] != device:
            if message not in posted:
                raise Failure(f"{message} was never posted")
            return self.wait(device, posted[message])
        if (message.phase.value, message.source, message.microbatch) not in values:
            raise Failure(f"{message} is not there yet")
        return gradient_to(message, values)

    def conclude(self) -> None:
        if self.failures:
            raise Failure("; ".join(self.failures))
        if any(self.sends.values()) or any(self.receives.values()):
            raise Failure("posted and never matched")
        training = any(letter == "B" for letter, _, _ in self.results)
        expected = sequential(self.list, training)
        got = {key: value for key, value in self.results.items() if key[0] in "FB"}
        if got != expected:
            raise Failure("not the values of one process")
        for letter, stage, microbatch in expected:
            whole = ("whole", stage, microbatch) in self.results
            if letter == "B" and not whole and ("W", stage, microbatch) not in self.results:
                raise Failure(f"no weight gradient of stage {stage}, micro-batch {microbatch}")


def result(letter: str, stage: int, microbatch: int, inputs: int) -> int:
    return (inputs * 31 + ord(letter) + 1009 * stage + 9176 * microbatch) % PRIME


def gradient_to(message: Message, values: dict[Key, int]) -> int:
    """What an edge carries: different on every edge, so that mixed-up messages show."""
    value = values[message.phase.value, message.source, message.microbatch]
    return (value * (7 + message.destination)) % PRIME


def sequential(action_list: ActionList, training: bool) -> dict[Key, int]:
    """The same numbers, computed in one process."""
    k, m = action_list.schedule.n_stages, action_list.schedule.n_microbatches
    values: dict[Key, int] = {}
    for i in range(m):
        for s in range(k):
            edges = [(e.source, s) for e in action_list.edges if e.destination == s]
            values["F", s, i] = result("F", s, i, gather(Phase.FORWARD, edges, i, values))
        for s in reversed(range(k)) if training else ():
            edges = [(e.destination, s) for e in action_list.edges if e.source == s and e.gradient]
            values["B", s, i] = result("B", s, i, gather(Phase.BACKWARD, edges, i, values))
    return values


def gather(phase: Phase, edges: list[tuple[int, int]], i: int, values: dict[Key, int]) -> int:
    return sum(gradient_to(Message(a, b, phase, i), values) for a, b in edges)
