"""Executes one device's actions, exactly in their order, over some transport."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from stagecut.ir.program import PipelineProgram
from stagecut.ir.schedule import ActionList, Compute, Message, Phase, Receive, Send
from stagecut.runtime.failure import failing_action
from stagecut.runtime.microbatches import MicroBatch
from stagecut.runtime.modules import instantiate
from stagecut.runtime.recording import Recorder
from stagecut.runtime.routes import Routes, differentiable
from stagecut.runtime.stage import Loss, StageRunner, Tensors


class Transport(Protocol):
    """Moves messages between devices; those of an ordered pair match in posting order."""

    def post_send(self, message: Message, tensors: Sequence[torch.Tensor]) -> None:
        """Starts a send and returns."""

    def post_receive(self, message: Message, blanks: Sequence[torch.Tensor]) -> None:
        """Starts a receive into `blanks` and returns."""

    def arrived(self, message: Message) -> Sequence[torch.Tensor] | None:
        """What a posted receive brought; None if the worker should come back later."""


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of a batch through the pipeline."""

    actions: ActionList
    microbatches: tuple[MicroBatch, ...]
    training: bool
    """Whether the actions hold backwards."""
    loss: Loss | None
    seed: int | None
    """Of the step's random draws; None where the model draws none."""
    halves: frozenset[tuple[int, int]] = frozenset()
    """(stage, micro-batch) of the backwards that come in two halves."""

    def seed_of(self, microbatch: int) -> int | None:
        """What the random ops of one micro-batch draw from."""
        return None if self.seed is None else self.seed * len(self.microbatches) + microbatch


@dataclass(slots=True)
class Outcome:
    """A step's results."""

    losses: list[torch.Tensor] = field(default_factory=list)
    """Weighted, in the order of the last stage's forwards; on every rank their sum alone."""
    outputs: dict[int, list[Any]] = field(default_factory=dict)
    """Leaves of each micro-batch's output; kept in inference only."""


@dataclass(slots=True)
class Worker:
    """One device: its stages, and the values that wait between actions."""

    device: int
    routes: Routes
    runners: Mapping[int, StageRunner]
    transport: Transport
    place: torch.device
    recorder: Recorder
    inbox: dict[Message, Tensors] = field(default_factory=dict)
    """What arrived, or was made by another stage of this device, and is not used yet."""
    outbox: dict[Message, Tensors] = field(default_factory=dict)
    """What was made and is not sent yet."""

    def run(self, step: Step, outcome: Outcome) -> Iterator[None]:
        """Executes the device's actions; yields whenever it waits for another device."""
        self.inbox.clear()
        self.outbox.clear()
        self.recorder.clear()
        for action in step.actions.devices[self.device]:
            if isinstance(action, Compute):
                needed = self.routes.needs(action)
                for message in needed:
                    while message not in self.inbox and not self._take(message):
                        yield
                start = self.recorder.mark()
                rows = step.microbatches[action.microbatch].rows
                with failing_action(self.device, action, rows):
                    self._compute(action, needed, step, outcome)
            else:
                start = self.recorder.mark()
                self._post(action, step)
            self.recorder.entries.append((action, start, self.recorder.mark()))

    def _take(self, message: Message) -> bool:
        """Puts a message in the inbox, if it has arrived."""
        arrived = self.transport.arrived(message)
        if arrived is None:
            return False
        self.inbox[message] = dict(zip(self.routes.names(message), arrived, strict=True))
        return True

    def _post(self, action: Send | Receive, step: Step) -> None:
        message = action.message
        if isinstance(action, Send):
            tensors = self.outbox.pop(message)
            self.transport.post_send(message, list(tensors.values()))
        else:
            symbols = step.microbatches[message.microbatch].symbols
            blanks = self.routes.blanks(message, symbols, self.place)
            self.transport.post_receive(message, blanks)

    def _compute(
        self, action: Compute, needed: Sequence[Message], step: Step, outcome: Outcome
    ) -> None:
        runner = self.runners[action.stage]
        arrived = [self.inbox.pop(message) for message in needed]
        match action.phase:
            case Phase.FORWARD:
                made = self._forward(runner, action, arrived, step, outcome)
            case Phase.BACKWARD:
                made = runner.backward(action.microbatch, _sum(arrived))
            case Phase.BACKWARD_INPUT:
                made = runner.backward_input(action.microbatch, _sum(arrived))
            case Phase.BACKWARD_WEIGHT:
                runner.backward_weight(action.microbatch)
                return
        for message in self.routes.makes(action):
            box = self.inbox if message.destination in self.runners else self.outbox
            box[message] = {name: made[name] for name in self.routes.names(message)}

    def _forward(
        self,
        runner: StageRunner,
        action: Compute,
        arrived: Sequence[Tensors],
        step: Step,
        outcome: Outcome,
    ) -> Tensors:
        microbatch = runner.bring(step.microbatches[action.microbatch], self.place)
        received = {name: tensor for tensors in arrived for name, tensor in tensors.items()}
        made, outputs = runner.forward(
            microbatch,
            received,
            seed=step.seed_of(microbatch.index),
            training=step.training,
            halves=(action.stage, action.microbatch) in step.halves,
            loss=step.loss,
        )
        if runner.outputs is not None:
            loss = runner.loss(microbatch.index) if step.training else None
            if loss is not None:
                outcome.losses.append(loss)
            if not step.training:
                outcome.outputs[microbatch.index] = outputs
        return made


def _sum(arrived: Sequence[Tensors]) -> Tensors:
    """The gradient of each value, over all stages that used it, in their order."""
    summed: Tensors = {}
    for tensors in arrived:
        for name, gradient in tensors.items():
            summed[name] = summed[name] + gradient if name in summed else gradient
    return summed


def stage_runners(
    program: PipelineProgram, tensors: Mapping[str, torch.Tensor], stages: Sequence[int]
) -> dict[int, StageRunner]:
    """Runners of some of a pipeline's stages, on the given weights themselves."""
    last = len(program.stages) - 1
    known = differentiable(program)
    return {
        index: StageRunner(
            program.stages[index],
            instantiate(program.stages[index], tensors),
            known,
            program.outputs if index == last else None,
            program.output_ports if index == last else (),
        )
        for index in stages
    }
