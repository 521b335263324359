"""One stage's work on micro-batches: forward with autograd cut off at the borders, backward.

received ──detach──▶ leaf ──▶ forward ──▶ results ──detach──▶ sent
returned ◀──────── leaf.grad ◀── backward ◀── gradients ◀── received
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.utils import _pytree as pytree

from stagecut.ir.expression import evaluate
from stagecut.ir.graph import Arg, Ref, WeightRef
from stagecut.ir.program import Port, StageProgram
from stagecut.ir.types import ScalarType
from stagecut.runtime.aliases import FreshAliases
from stagecut.runtime.halves import Root, WeightHalf, input_half
from stagecut.runtime.microbatches import MicroBatch

Tensors = dict[str, torch.Tensor]
Loss = Callable[[Sequence[Any], Any], torch.Tensor]
"""From the leaves of the model's output and the target of one micro-batch to its mean loss."""


@dataclass(slots=True)
class InFlight:
    """What a stage keeps of one micro-batch between forward and backward."""

    leaves: Tensors
    """What it received and sends gradients for."""
    results: Tensors
    """What it sent and gets gradients for."""
    loss: torch.Tensor | None = None
    """Weighted by the micro-batch's share of the rows."""
    weight_half: WeightHalf | None = None
    """What is left once the input half has run."""


@dataclass(slots=True)
class StageRunner:
    """A stage's module with its micro-batches in flight."""

    program: StageProgram
    module: nn.Module
    differentiable: frozenset[str]
    """Values of the whole model that carry gradients across cuts."""
    outputs: tuple[Arg, ...] | None
    """The model's outputs, on the last stage."""
    output_ports: tuple[Port, ...]
    """The values that they name."""
    flying: dict[int, InFlight] = field(default_factory=dict)
    repeated: frozenset[int] | None = None
    """The ids of the weights that one forward uses more than once, once that is known."""

    def forward(
        self,
        microbatch: MicroBatch,
        received: Mapping[str, torch.Tensor],
        *,
        seed: int | None,
        training: bool,
        halves: bool = False,
        loss: Loss | None,
    ) -> tuple[Tensors, list[Any]]:
        """Runs one micro-batch.

        Args:
            microbatch: Its inputs and sizes.
            received: Values from other stages, by name.
            seed: What random ops draw from; None leaves the generator alone.
            training: Whether a backward will follow.
            halves: Whether it will come in two halves.
            loss: On the last stage in training.

        Returns:
            What other stages may need, detached; and on the last stage the output leaves.
        """
        leaves = {
            name: tensor.detach().requires_grad_()
            for name, tensor in received.items()
            if training and name in self.differentiable
        }
        values = {**microbatch.inputs, **received, **leaves}
        if hasattr(self.module, "seed"):
            self.module.seed = seed  # type: ignore[assignment]
        with torch.set_grad_enabled(training):
            arguments = self._arguments(microbatch, values)
            divided = halves and not self.recomputes
            made = self._in_halves(arguments) if divided else self.module(*arguments)
            results = {p.name: t for p, t in zip(self.program.results, made, strict=True)}
            outputs = self._outputs(microbatch, {**values, **results})
            if training:
                kept = {n: t for n, t in results.items() if _has_gradient(t)}
                self.flying[microbatch.index] = InFlight(leaves, kept)
                if loss is not None and self.outputs is not None:
                    value = loss(outputs, microbatch.target) * microbatch.share
                    self.flying[microbatch.index].loss = value
        return {n: t.detach() for n, t in results.items()}, outputs

    def bring(self, microbatch: MicroBatch, place: torch.device) -> MicroBatch:
        """The micro-batch with what this stage uses of it on the stage's device."""
        ports = (*self.program.inputs, *self.output_ports)
        used = {port.name for port in ports if port.stage is None}
        inputs = {
            name: tensor.to(place, non_blocking=True) if name in used else tensor
            for name, tensor in microbatch.inputs.items()
        }
        target = microbatch.target
        if self.outputs is not None:
            target = pytree.tree_map_only(torch.Tensor, lambda t: t.to(place), target)
        return replace(microbatch, inputs=inputs, target=target)

    def loss(self, index: int) -> torch.Tensor | None:
        """The weighted loss of a micro-batch whose forward has run on the last stage."""
        value = self.flying[index].loss
        return None if value is None else value.detach()

    def backward(self, index: int, gradients: Mapping[str, torch.Tensor]) -> Tensors:
        """Runs one micro-batch's backward and gives the gradients of what was received."""
        flying = self.flying.pop(index)
        roots = _roots(flying, gradients)
        if roots:
            torch.autograd.backward([edge for edge, _ in roots], [seed for _, seed in roots])
        return _or_zeros(flying.leaves, [leaf.grad for leaf in flying.leaves.values()])

    def backward_input(self, index: int, gradients: Mapping[str, torch.Tensor]) -> Tensors:
        """The half of a backward that other stages wait for; gives what `backward` gives."""
        flying = self.flying[index]
        leaves = list(flying.leaves.values())
        found, flying.weight_half = input_half(
            _roots(flying, gradients), leaves, restarts=not self.recomputes
        )
        return _or_zeros(flying.leaves, found)

    def backward_weight(self, index: int) -> None:
        """The other half: adds to the gradients of the weights."""
        half = self.flying.pop(index).weight_half
        if half is not None:
            half.run()

    @property
    def recomputes(self) -> bool:
        """Whether some of the forward runs again in the backward."""
        return "checkpoint(" in self.program.source

    def _in_halves(self, arguments: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """Runs the module so that each use of a weight can be told from the others."""
        aliases = FreshAliases(self.repeated)
        with contextlib.nullcontext() if self.repeated == frozenset() else aliases:
            made: tuple[torch.Tensor, ...] = self.module(*arguments)
        if self.repeated is None:
            self.repeated = aliases.repeated
        return made

    def _arguments(self, microbatch: MicroBatch, values: Mapping[str, Any]) -> list[Any]:
        return [
            evaluate(port.type.expression, microbatch.symbols)
            if isinstance(port.type, ScalarType)
            else values[port.name]
            for port in self.program.inputs
        ]

    def _outputs(self, microbatch: MicroBatch, values: Mapping[str, Any]) -> list[Any]:
        sizes = {
            port.name: evaluate(port.type.expression, microbatch.symbols)
            for port in self.output_ports
            if isinstance(port.type, ScalarType)
        }
        return [self._output(arg, {**values, **sizes}) for arg in self.outputs or ()]

    def _output(self, arg: Arg, values: Mapping[str, Any]) -> Any:
        if isinstance(arg, Ref):
            return values[arg.name]
        return self.weight(arg.name) if isinstance(arg, WeightRef) else arg

    def weight(self, name: str) -> torch.Tensor:
        """The stage's own tensor of a weight, by any of its names."""
        path, _, leaf = name.rpartition(".")
        tensor: torch.Tensor = getattr(self.module.get_submodule(path), leaf)
        return tensor


def _has_gradient(tensor: torch.Tensor) -> bool:
    """Whether a backward can start from it; a view made under no_grad only says that it can."""
    return tensor.requires_grad and not (tensor.grad_fn is None and tensor._is_view())


def _roots(flying: InFlight, gradients: Mapping[str, torch.Tensor]) -> list[Root]:
    """Where a micro-batch's backward starts: its loss, and the results with gradients."""
    roots: list[Root] = []
    if flying.loss is not None and flying.loss.requires_grad:
        roots.append((get_gradient_edge(flying.loss), torch.ones_like(flying.loss)))
    roots += [
        (get_gradient_edge(result), gradients[name])
        for name, result in flying.results.items()
        if name in gradients
    ]
    return roots


def _or_zeros(leaves: Tensors, gradients: Sequence[torch.Tensor | None]) -> Tensors:
    """A gradient that is missing is zero, so that both ends agree on what is sent."""
    pairs = zip(leaves.items(), gradients, strict=True)
    return {name: torch.zeros_like(leaf) if g is None else g for (name, leaf), g in pairs}
