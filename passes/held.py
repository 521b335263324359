"""The weights that each stage holds, and what they take for a whole step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stagecut.ir.graph import Graph, Op, Weight, op_refs
from stagecut.passes.propagate import owned_weights
from stagecut.passes.states import step_workspace_bytes, weight_bytes


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of one stage's weights."""

    weights: int
    gradients: int
    optimizer: int
    step_workspace: int
    """Temporaries of the optimizer's step."""

    @staticmethod
    def of(weights: Sequence[Weight], optimizer: str, training: bool, device_kind: str) -> Held:
        """The sums over some weights."""
        terms = [weight_bytes(weight, optimizer, training) for weight in weights]
        held, gradients, state = (sum(column) for column in zip((0, 0, 0), *terms, strict=True))
        workspace = step_workspace_bytes(weights, optimizer, device_kind) if training else 0
        return Held(held, gradients, state, workspace)


def trained(graph: Graph) -> tuple[Weight, ...]:
    """The graph's weights, of which only those that a gradient reaches count as trainable.

    A weight used under `no_grad` alone has no gradient, and so no optimizer state.
    """
    reached = {
        name
        for op in graph.ops
        if op.cost is not None and op.cost.backward_weight.kernels
        for name in weights_of_ops(graph, [op])
    }
    return tuple(
        weight if weight.name in reached else replace(weight, trainable=False)
        for weight in graph.weights
    )


def weights_of_ops(graph: Graph, ops: Sequence[Op]) -> set[str]:
    """The weights that some ops read, by name, among other names that they read."""
    names: set[str] = set()
    for op in ops:
        names.update(ref.name for ref in op_refs(op))
        names.update(weight.name for _, weight in owned_weights(op, graph.weights))
    return names
