"""The user's own modules inside stages: those that could not be traced, called as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from torch import nn

from stagecut.frontend import Traced
from stagecut.ir.errors import ArgumentError, InfeasibleError
from stagecut.ir.graph import Graph
from stagecut.ir.plan import Plan


class HasModule(Protocol):
    """A stage that is loaded."""

    @property
    def module(self) -> nn.Module:
        """Its code with its weights."""


def opaque_modules(graph: Graph, model: nn.Module) -> dict[str, nn.Module]:
    """The modules that a graph calls, by path."""
    paths = (op.target.removeprefix("module:") for op in graph.ops if ":" in op.target)
    return {path: model.get_submodule(path) for path in dict.fromkeys(paths)}


@contextmanager
def told_what_is_whole(traced: Traced) -> Iterator[None]:
    """Inside, where no cut is found, the error also says which modules could not be cut."""
    try:
        yield
    except InfeasibleError as error:
        whole = traced.means.opaque
        if not whole:
            raise
        more = f" and {len(whole) - 3} more" if len(whole) > 3 else ""
        raise InfeasibleError(
            f"{error}\n  {', '.join(whole[:3])}{more} cannot be cut inside: {traced.frontend}"
        ) from error


def place_modules(plan: Plan, runners: Mapping[int, HasModule], model: nn.Module | None) -> None:
    """Puts the user's modules where the stages of this process call them.

    A module's buffers become those of its stage, which may be on another device.

    Raises:
        ArgumentError: there is no model to take them from.
    """
    for op, stages in zip(plan.graph.ops, plan.stages_of_ops, strict=True):
        for stage in set(stages) & set(runners) if ":" in op.target else ():
            if model is None:
                raise ArgumentError(
                    f"the plan calls {op.scope} as it is: give pipeline(plan, model)"
                )
            _place(runners[stage].module, op.target.removeprefix("module:"), model)


def _place(stage: nn.Module, path: str, model: nn.Module) -> None:
    parent, _, leaf = path.rpartition(".")
    held, own = stage.get_submodule(path), model.get_submodule(path)
    for name, buffer in held.named_buffers():
        inside, _, last = name.rpartition(".")
        setattr(own.get_submodule(inside), last, buffer)
    setattr(stage.get_submodule(parent), leaf, own)
