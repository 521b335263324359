"""Executes one device's actions, exactly in their order, over some transport."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from stagecut.ir.program import PipelineProgram
from stagecut.ir.schedule import ActionList, Compute, Message, Phase, Receive, Send
from stagecut.ir.types import TensorType
from stagecut.runtime.failure import failing_action
from stagecut.runtime.microbatches import MicroBatch
from stagecut.runtime.modules import instantiate
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
    program: PipelineProgram
    runners: Mapping[int, StageRunner]
    transport: Transport
    place: torch.device
    inbox: dict[Message, Tensors] = field(default_factory=dict)
    """What arrived, or was made by another stage of this device, and is not used yet."""
    outbox: dict[Message, Tensors] = field(default_factory=dict)
    """What was made and is not sent yet."""
    executed: int = 0
    """Actions done so far."""

    def run(self, step: Step, outcome: Outcome) -> Iterator[None]:
        """Executes the device's actions; yields whenever it waits for another device."""
        self.inbox.clear()
        self.outbox.clear()
        for action in step.actions.devices[self.device]:
            match action:
                case Send(message):
                    tensors = self.outbox.pop(message)
                    self.transport.post_send(message, [tensors[n] for n in self.names(message)])
                case Receive(message):
                    self.transport.post_receive(message, self._blanks(message, step))
                case Compute():
                    for message in self._needs(action, step):
                        while message not in self.inbox:
                            arrived = self.transport.arrived(message)
                            if arrived is None:
                                yield
                            else:
                                names = self.names(message)
                                self.inbox[message] = dict(zip(names, arrived, strict=True))
                    with failing_action(self.device, action):
                        self._compute(action, step, outcome)
            self.executed += 1

    def names(self, message: Message) -> list[str]:
        """The values that a message carries, in order."""
        forward = message.phase is Phase.FORWARD
        a, b = message.source, message.destination
        pair = (a, b) if forward else (b, a)
        edges = zip(self.program.edges, self.program.deliveries, strict=True)
        carried = next(names for e, names in edges if (e.source, e.destination) == pair)
        known = differentiable(self.program)
        return [name for name in carried if forward or name in known]

    def _needs(self, action: Compute, step: Step) -> list[Message]:
        stage, microbatch = action.stage, action.microbatch
        edges = self.program.edges
        if action.phase is Phase.FORWARD:
            sources = [e.source for e in edges if e.destination == stage]
            return [Message(s, stage, Phase.FORWARD, microbatch) for s in sources]
        users = [e.destination for e in edges if e.source == stage and e.gradient]
        return [Message(u, stage, Phase.BACKWARD, microbatch) for u in users]

    def _compute(self, action: Compute, step: Step, outcome: Outcome) -> None:
        arrived = [(m.source, self.inbox.pop(m)) for m in self._needs(action, step)]
        if action.phase is Phase.FORWARD:
            self._forward(action, step, arrived, outcome)
        else:
            self._backward(action, arrived)

    def _forward(
        self, action: Compute, step: Step, arrived: list[tuple[int, Tensors]], outcome: Outcome
    ) -> None:
        runner = self.runners[action.stage]
        microbatch = runner.bring(step.microbatches[action.microbatch], self.place)
        received = {name: tensor for _, tensors in arrived for name, tensor in tensors.items()}
        seed = None if step.seed is None else step.seed * len(step.microbatches) + microbatch.index
        made, outputs = runner.forward(
            microbatch, received, seed=seed, training=step.training, loss=step.loss
        )
        for edge in self.program.edges:
            if edge.source == action.stage:
                message = Message(edge.source, edge.destination, Phase.FORWARD, microbatch.index)
                self._deliver(message, {name: made[name] for name in self.names(message)})
        if runner.outputs is not None:
            loss = runner.loss(microbatch.index) if step.training else None
            if loss is not None:
                outcome.losses.append(loss)
            if not step.training:
                outcome.outputs[microbatch.index] = outputs

    def _backward(self, action: Compute, arrived: list[tuple[int, Tensors]]) -> None:
        summed: Tensors = {}
        for _, tensors in sorted(arrived, key=lambda item: item[0]):
            for name, gradient in tensors.items():
                summed[name] = summed[name] + gradient if name in summed else gradient
        gradients = self.runners[action.stage].backward(action.microbatch, summed)
        for edge in self.program.edges:
            if edge.destination == action.stage and edge.gradient:
                back = Message(edge.destination, edge.source, Phase.BACKWARD, action.microbatch)
                self._deliver(back, {name: gradients[name] for name in self.names(back)})

    def _deliver(self, message: Message, tensors: Tensors) -> None:
        here = message.destination in self.runners
        (self.inbox if here else self.outbox)[message] = tensors

    def _blanks(self, message: Message, step: Step) -> list[torch.Tensor]:
        symbols = step.microbatches[message.microbatch].symbols
        ports = {p.name: p for stage in self.program.stages for p in stage.results}
        blanks = []
        for name in self.names(message):
            kind = ports[name].type
            if isinstance(kind, TensorType):
                dtype = getattr(torch, kind.dtype)
                blanks.append(torch.empty(kind.sizes(symbols), dtype=dtype, device=self.place))
        return blanks


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


def differentiable(program: PipelineProgram) -> frozenset[str]:
    """The values that carry a gradient back across a cut."""
    return frozenset(p.name for stage in program.stages for p in stage.results if p.requires_grad)
