"""One stage's work on micro-batches: forward with autograd cut off at the borders, backward.

received ──detach──▶ leaf ──▶ forward ──▶ results ──detach──▶ sent
returned ◀──────── leaf.grad ◀── backward ◀── gradients ◀── received
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stagecut.ir.expression import evaluate
from stagecut.ir.graph import Arg, Ref, WeightRef
from stagecut.ir.program import Port, StageProgram
from stagecut.ir.types import ScalarType
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

    def forward(
        self,
        microbatch: MicroBatch,
        received: Mapping[str, torch.Tensor],
        *,
        seed: int | None,
        training: bool,
        loss: Loss | None,
    ) -> tuple[Tensors, list[Any]]:
        """Runs one micro-batch.

        Args:
            microbatch: Its inputs and sizes.
            received: Values from other stages, by name.
            seed: What random ops draw from; None leaves the generator alone.
            training: Whether a backward will follow.
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
            made = self.module(*self._arguments(microbatch, values))
            results = {p.name: t for p, t in zip(self.program.results, made, strict=True)}
            outputs = self._outputs(microbatch, {**values, **results})
            if training:
                kept = {n: t for n, t in results.items() if t.requires_grad}
                self.flying[microbatch.index] = InFlight(leaves, kept)
                if loss is not None and self.outputs is not None:
                    value = loss(outputs, microbatch.target) * microbatch.share
                    self.flying[microbatch.index].loss = value
        return {n: t.detach() for n, t in results.items()}, outputs

    def loss(self, index: int) -> torch.Tensor | None:
        """The weighted loss of a micro-batch whose forward has run on the last stage."""
        value = self.flying[index].loss
        return None if value is None else value.detach()

    def backward(self, index: int, gradients: Mapping[str, torch.Tensor]) -> Tensors:
        """Runs one micro-batch's backward and gives the gradients of what was received."""
        flying = self.flying.pop(index)
        roots: list[torch.Tensor] = []
        seeds: list[torch.Tensor | None] = []
        if flying.loss is not None and flying.loss.requires_grad:
            roots.append(flying.loss)
            seeds.append(None)
        for name, result in flying.results.items():
            if name in gradients:
                roots.append(result)
                seeds.append(gradients[name])
        if roots:
            torch.autograd.backward(roots, seeds)
        return {
            name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            for name, leaf in flying.leaves.items()
        }

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
