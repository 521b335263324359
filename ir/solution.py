"""What a partitioner answers: an assignment, its score, and how good it can be at most."""

from __future__ import annotations

from dataclasses import dataclass

from stagecut.ir.problem import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """The stage of every cluster of a problem."""

    stage: IntArray
    """Shape [n], values 0..k-1."""


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """The exact score of one assignment; arrays have shape [k]."""

    forward_seconds: FloatArray
    backward_seconds: FloatArray
    send_seconds: FloatArray
    receive_seconds: FloatArray
    sync_seconds: FloatArray
    """Gradient sums of weights that several stages hold."""
    load_seconds: FloatArray
    """The sum of the five above."""
    weight_bytes: FloatArray
    saved_bytes: FloatArray
    """Bytes of one micro-batch; times in_flight in memory_bytes."""
    workspace_bytes: FloatArray
    memory_bytes: FloatArray
    bytes_cut: float
    """Bytes sent in one micro-batch, activations and gradients, under the send rule."""
    faults: tuple[str, ...]
    """Broken constraints (order, pins, memory, empty stages), each one sentence; empty if valid."""

    @property
    def bottleneck_seconds(self) -> float:
        """The largest stage load."""
        return float(self.load_seconds.max())


@dataclass(frozen=True, slots=True)
class Trial:
    """One method that was tried, for the plan's table."""

    method: str
    bottleneck_seconds: float
    """Infinity where the method found nothing feasible."""
    bytes_cut: float
    seconds: float
    """How long the method took."""
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The chosen assignment with its certificate."""

    assignment: Assignment
    evaluation: Evaluation
    method: str
    lower_bound_seconds: float
    """No valid assignment of the problem has a smaller bottleneck."""
    optimal: bool
    """Proved, to 1e-6 relative."""
    trials: tuple[Trial, ...]
    stopped_by_clock: bool = False
    """True where the time limit, not a deterministic budget, ended the search."""

    @property
    def gap(self) -> float:
        """bottleneck / lower bound - 1."""
        bound, achieved = self.lower_bound_seconds, self.evaluation.bottleneck_seconds
        if achieved <= bound:
            return 0.0
        return achieved / bound - 1 if bound > 0 else float("inf")
