"""What code generation hands to a runtime: one program a stage, and how they are wired."""

from __future__ import annotations

from dataclasses import dataclass

from stagecut.ir.graph import Arg, Weight
from stagecut.ir.schedule import StageEdge
from stagecut.ir.types import Type


@dataclass(frozen=True, slots=True)
class Port:
    """One argument of a stage's forward, or one of its results."""

    name: str
    """The value's name in the graph and in the generated code."""
    type: Type
    requires_grad: bool
    """Whether a gradient comes back through it."""
    stage: int | None
    """The stage that makes it; None for an input of the model and for a size."""


@dataclass(frozen=True, slots=True)
class StageProgram:
    """One stage as source text, with its signature."""

    index: int
    class_name: str
    source: str
    """A whole Python file that needs torch alone."""
    inputs: tuple[Port, ...]
    """In the order of forward's parameters."""
    results: tuple[Port, ...]
    """In the order of the tuple that forward returns."""
    weights: tuple[Weight, ...]
    """What the stage holds, under its original names."""


@dataclass(frozen=True, slots=True)
class PipelineProgram:
    """All stages, and what crosses between them."""

    stages: tuple[StageProgram, ...]
    outputs: tuple[Arg, ...]
    """One a leaf of the model's output; references name values that the last stage has."""
    deliveries: tuple[tuple[str, ...], ...]
    """For each of `edges`, the names of the values it carries, in the order they are sent."""
    edges: tuple[StageEdge, ...]
    """Which stages exchange values; skips are edges of their own."""
    output_ports: tuple[Port, ...]
    """Every value that `outputs` names, and the stage that makes it."""
