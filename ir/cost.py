"""What an op costs: work forward and backward, and what autograd keeps for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Origin = Literal["analytic", "measured", "given"]


@dataclass(frozen=True, slots=True)
class Work:
    """One pass of one op over one micro-batch of the example's size."""

    flops: float = 0.0
    """Of matrix products, convolutions, attention and recurrences."""
    elementwise_flops: float = 0.0
    """One for each element read or written, whichever are more, by every kernel that computes."""
    bytes: float = 0.0
    """Read and written."""
    kernels: int = 0
    """Kernels started."""
    seconds: float = 0.0
    """On the planned device."""

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flops + other.flops,
            self.elementwise_flops + other.elementwise_flops,
            self.bytes + other.bytes,
            self.kernels + other.kernels,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True, slots=True)
class Saved:
    """One storage that autograd keeps for an op's backward."""

    kind: Literal["argument", "result", "internal"]
    index: int
    """An argument's place among `op_refs(op)`, a result's among the results; internals count up."""
    n_bytes: int
    """The whole storage in the example, whatever part of it the op uses."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one op."""

    forward: Work = Work()
    backward_input: Work = Work()
    """Gradients of the op's activations."""
    backward_weight: Work = Work()
    """Gradients of the op's weights."""
    saved: tuple[Saved, ...] = ()
    shares: tuple[int, ...] = ()
    """For each result, the place among `op_refs(op)` whose storage it lives in; -1 for its own."""
    workspace_bytes: int = 0
    """Largest sum of temporaries alive inside the op, forward or backward."""
    origin: Origin = "analytic"

    @property
    def backward(self) -> Work:
        """Both halves of the backward."""
        return self.backward_input + self.backward_weight
