"""All stages in one process: the reference for correctness, and a way to debug."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from stagecut.ir.errors import RuntimeFailure
from stagecut.ir.program import PipelineProgram
from stagecut.ir.schedule import Message
from stagecut.runtime.entry import Arrival, Entry
from stagecut.runtime.recording import Recorded, Recorder
from stagecut.runtime.routes import routes_of
from stagecut.runtime.worker import Outcome, Step, Worker, stage_runners


@dataclass(slots=True)
class Mailbox:
    """A transport inside one process."""

    sent: dict[Message, Sequence[torch.Tensor]] = field(default_factory=dict)

    def post_send(self, message: Message, tensors: Sequence[torch.Tensor]) -> None:
        """Puts the tensors where `arrived` finds them."""
        self.sent[message] = tensors

    def post_receive(self, message: Message, blanks: Sequence[torch.Tensor]) -> None:
        """Nothing to do: the sender's tensors are handed over as they are."""

    def arrived(self, message: Message) -> Sequence[torch.Tensor] | None:
        """The tensors, once they are sent."""
        return self.sent.pop(message, None)


class LocalRuntime:
    """Runs every device's actions by turns in one process."""

    def __init__(
        self,
        program: PipelineProgram,
        tensors: Mapping[str, torch.Tensor],
        device_of_stage: Sequence[int],
    ) -> None:
        self.runners = stage_runners(program, tensors, range(len(program.stages)))
        place = next(iter(tensors.values())).device if tensors else torch.device("cpu")
        self.mailbox = Mailbox()
        routes = routes_of(program)
        self.workers = [
            Worker(
                device,
                routes,
                {s: r for s, r in self.runners.items() if device_of_stage[s] == device},
                self.mailbox,
                place,
                Recorder(place),
            )
            for device in range(max(device_of_stage) + 1)
        ]

    def run(self, step: Step) -> Outcome:
        """Executes a step.

        Raises:
            RuntimeFailure: a stage failed; names stage, micro-batch and the user's line.
        """
        outcome = Outcome()
        self.mailbox.sent.clear()
        for runner in self.runners.values():
            runner.flying.clear()
        waiting = [worker.run(step, outcome) for worker in self.workers]
        while waiting:
            before = sum(len(worker.recorder.entries) for worker in self.workers)
            waiting = [run for run in waiting if next(run, self) is not self]
            if waiting and sum(len(worker.recorder.entries) for worker in self.workers) == before:
                raise RuntimeFailure("every device waits for another; the schedule was not checked")
        return outcome

    @property
    def replica(self) -> int:
        """One pipeline, without copies."""
        return 0

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor: there is no other process."""
        return tensor

    def enter(self, arrival: Arrival) -> Entry:
        """A step of one process begins as it comes."""
        return Entry(arrival.rows, arrival.seed)

    def recorded(self) -> tuple[Recorded, ...]:
        """What each device did in the last step, and when."""
        return tuple(worker.recorder.read() for worker in self.workers)
