"""Which values go where: a pipeline's wiring, looked up by stage and direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from stagecut.ir.program import PipelineProgram
from stagecut.ir.schedule import Compute, Message, Phase
from stagecut.ir.types import TensorType

Route = tuple[int, int, Phase]
"""Source stage, destination stage, direction."""


@dataclass(frozen=True, slots=True)
class Routes:
    """The wiring of one pipeline."""

    carried: Mapping[Route, tuple[str, ...]]
    """The values, or their gradients, that a message carries, in order."""
    into: Mapping[tuple[int, Phase], tuple[int, ...]]
    """The stages that a stage hears from in a direction, in order."""
    out_of: Mapping[tuple[int, Phase], tuple[int, ...]]
    """The stages that it speaks to."""
    types: Mapping[str, TensorType]
    """Of every value that crosses."""
    shapes: dict[tuple[Route, tuple[int, ...]], list[tuple[tuple[int, ...], torch.dtype]]] = field(
        default_factory=dict
    )
    """What was worked out before: shapes and dtypes of a route at some sizes."""

    def names(self, message: Message) -> tuple[str, ...]:
        """The values that a message carries, in order."""
        return self.carried[message.source, message.destination, message.phase]

    def needs(self, compute: Compute) -> list[Message]:
        """What a compute uses of other stages, those of its own device included."""
        stage, phase, microbatch = compute.stage, _direction(compute.phase), compute.microbatch
        if compute.phase is Phase.BACKWARD_WEIGHT:
            return []
        return [Message(s, stage, phase, microbatch) for s in self.into.get((stage, phase), ())]

    def makes(self, compute: Compute) -> list[Message]:
        """What other stages use of a compute."""
        stage, phase, microbatch = compute.stage, _direction(compute.phase), compute.microbatch
        if compute.phase is Phase.BACKWARD_WEIGHT:
            return []
        return [Message(stage, s, phase, microbatch) for s in self.out_of.get((stage, phase), ())]

    def blanks(
        self, message: Message, symbols: Mapping[str, int], place: torch.device
    ) -> list[torch.Tensor]:
        """Tensors to receive a message into."""
        route = message.source, message.destination, message.phase
        key = route, tuple(symbols.values())
        if key not in self.shapes:
            types = [self.types[name] for name in self.carried[route]]
            self.shapes[key] = [(t.sizes(symbols), getattr(torch, t.dtype)) for t in types]
        return [torch.empty(shape, dtype=dtype, device=place) for shape, dtype in self.shapes[key]]


def routes_of(program: PipelineProgram) -> Routes:
    """Looks the wiring up once."""
    known = differentiable(program)
    carried: dict[Route, tuple[str, ...]] = {}
    for edge, names in zip(program.edges, program.deliveries, strict=True):
        carried[edge.source, edge.destination, Phase.FORWARD] = names
        if edge.gradient:
            back = tuple(name for name in names if name in known)
            carried[edge.destination, edge.source, Phase.BACKWARD] = back
    into: dict[tuple[int, Phase], tuple[int, ...]] = {}
    out_of: dict[tuple[int, Phase], tuple[int, ...]] = {}
    for source, destination, phase in sorted(carried):
        into[destination, phase] = (*into.get((destination, phase), ()), source)
        out_of[source, phase] = (*out_of.get((source, phase), ()), destination)
    ports = [port for stage in program.stages for port in stage.results]
    types = {port.name: port.type for port in ports if isinstance(port.type, TensorType)}
    return Routes(carried, into, out_of, types)


def differentiable(program: PipelineProgram) -> frozenset[str]:
    """The values that carry a gradient back across a cut."""
    return frozenset(p.name for stage in program.stages for p in stage.results if p.requires_grad)


def _direction(phase: Phase) -> Phase:
    return Phase.FORWARD if phase is Phase.FORWARD else Phase.BACKWARD
