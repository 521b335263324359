"""The clock of one simulated step: times of computes and transfers, and what each waited for."""

from __future__ import annotations

from stagecut.partitioner.schedules.progress import SEND, Wait

Event = tuple[bool, int, int]
"""(is a transfer, channel or device, index there); an index of -1 is the start of the step."""


class Execution:
    """Filled action by action, in an order in which each can run."""

    def __init__(self, channels: tuple[tuple[int, int], ...], n_devices: int) -> None:
        self.channels = channels
        self.starts: list[list[float]] = [[] for _ in range(n_devices)]
        self.ends: list[list[float]] = [[] for _ in range(n_devices)]
        self.departures: list[list[float]] = [[] for _ in channels]
        self.arrivals: list[list[float]] = [[] for _ in channels]
        self._waits: list[list[tuple[Wait, ...]]] = [[] for _ in range(n_devices)]
        # After how many computes of its device each end of each message was posted.
        self._sent: list[list[int]] = [[] for _ in channels]
        self._received: list[list[int]] = [[] for _ in channels]

    def compute(self, device: int, seconds: float, waits: tuple[Wait, ...]) -> None:
        """Runs once the device is free and all `waits` have arrived."""
        ends = self.ends[device]
        start = ends[-1] if ends else 0.0
        for channel, index in waits:
            arrival = self.arrivals[channel][index]
            if arrival > start:
                start = arrival
        self.starts[device].append(start)
        ends.append(start + seconds)
        self._waits[device].append(waits)

    def post(self, device: int, channel: int, kind: int, seconds: float) -> None:
        """Posts one end; the transfer is timed when the second end of the two is."""
        mine, other = self._sent[channel], self._received[channel]
        if kind != SEND:
            mine, other = other, mine
        mine.append(len(self.ends[device]))
        if len(other) < len(mine):
            return
        sender, receiver = self.channels[channel]
        index = len(mine) - 1
        sent, received = self._sent[channel][index], self._received[channel][index]
        start = self.arrivals[channel][-1] if index else 0.0
        if sent and self.ends[sender][sent - 1] > start:
            start = self.ends[sender][sent - 1]
        if received and self.ends[receiver][received - 1] > start:
            start = self.ends[receiver][received - 1]
        self.departures[channel].append(start)
        self.arrivals[channel].append(start + seconds)

    def end(self, event: Event) -> float:
        """When an event ends; 0 for the start of the step."""
        is_transfer, where, index = event
        if index < 0:
            return 0.0
        return (self.arrivals if is_transfer else self.ends)[where][index]

    def before(self, event: Event) -> list[Event]:
        """What an event waits for; the latest of them ends when it starts."""
        is_transfer, where, index = event
        if is_transfer:
            sender, receiver = self.channels[where]
            return [
                (False, sender, self._sent[where][index] - 1),
                (False, receiver, self._received[where][index] - 1),
                (True, where, index - 1),
            ]
        waits = self._waits[where][index]
        return [(False, where, index - 1), *((True, channel, j) for channel, j in waits)]

    @property
    def clock(self) -> list[float]:
        """When each device ends its last compute."""
        return [ends[-1] if ends else 0.0 for ends in self.ends]
