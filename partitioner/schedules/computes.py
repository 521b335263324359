"""The four verbs that the schedule generators speak in."""

from __future__ import annotations

from stagecut.ir.schedule import Compute, Phase


def forward(stage: int, microbatch: int) -> Compute:
    """Runs the stage on the micro-batch."""
    return Compute(stage, Phase.FORWARD, microbatch)


def backward(stage: int, microbatch: int) -> Compute:
    """Computes the gradients of the stage's inputs and weights together."""
    return Compute(stage, Phase.BACKWARD, microbatch)


def backward_input(stage: int, microbatch: int) -> Compute:
    """Computes the gradients of the stage's inputs only: what earlier stages wait for."""
    return Compute(stage, Phase.BACKWARD_INPUT, microbatch)


def backward_weight(stage: int, microbatch: int) -> Compute:
    """Computes the gradients of the stage's weights only: nobody waits for them in the step."""
    return Compute(stage, Phase.BACKWARD_WEIGHT, microbatch)
