"""Generators of the model's own: `torch.rand(3, generator=self.noise)`.

A trace cannot hold one. The module that draws runs as it is and with its generator, which moves on
micro-batch after micro-batch, as in the unsplit model. If two modules drew from one generator, each
stage would have a copy of it, and the same numbers would be drawn twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from stagecut.frontend.calls import Call
from stagecut.frontend.sources import users_line
from stagecut.ir.errors import TraceError


def refuse_own_generator(call: Call) -> None:
    """Refuses a draw from a generator that is given by name.

    Raises:
        TraceError: names the user's line.
    """
    if _given(call.args, call.kwargs):
        raise TraceError(
            f"{users_line(call.frame)}: a trace cannot hold a torch.Generator; leave generator= "
            "out (draws are then seeded by step, op and micro-batch, and do not depend on the "
            "cut), or put what draws into a module of its own, which then runs as it is, with a "
            "generator that no other module draws from"
        )


class Drawn(TorchFunctionMode):
    """Notes which generators are drawn from inside, and their state before."""

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[torch.Generator, torch.Tensor] = {}

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Passes a call on, its generators noted."""
        for generator in _given(args, kwargs or {}):
            self.states.setdefault(generator, generator.get_state())
        return func(*args, **(kwargs or {}))

    def put_back(self) -> None:
        """Every generator as it was before the first draw."""
        for generator, state in self.states.items():
            generator.set_state(state)


def _given(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Generator]:
    return [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)]
