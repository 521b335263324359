"""Decisions that a model's Python takes by the values of tensors, kept as the example took them.

    if h.sum() > 0:      %gt = aten.gt.Scalar(%sum, 0)
        h = h * 2        stagecut.expect.default(%gt, True, "model.py:12")
                         %mul = aten.mul.Tensor(%h, 2)

The last resort, where no module can be set aside to decide for itself. The example is run once and
each decision noted; the trace takes the same ones. The graph holds a check of each, so that a step
that would decide otherwise raises instead of computing something else.
"""

from __future__ import annotations

import json
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.fx.node import has_side_effect
from torch.overrides import TorchFunctionMode

from stagecut.frontend.sources import short_path, users_place
from stagecut.ir.errors import TraceError

TARGET = "stagecut.expect.default"


@torch.library.custom_op("stagecut::expect", mutates_args=())
def _expect(tensor: torch.Tensor, value: str, place: str) -> None:
    found = tensor.tolist()
    if found != json.loads(value):
        raise TraceError(f"{place} was {value} and is {json.dumps(found)}")


@_expect.register_fake
def _(tensor: torch.Tensor, value: str, place: str) -> None:
    return None


# Without it torch.export drops the check, which has no result.
has_side_effect(torch.ops.stagecut.expect.default)

_CHOICES: Mapping[Any, str] = MappingProxyType(
    {
        torch.Tensor.__bool__: "__bool__",
        torch.Tensor.__int__: "__int__",
        torch.Tensor.__index__: "__index__",
    }
)
_NUMBERS: Mapping[Any, str] = MappingProxyType(
    {
        **_CHOICES,
        torch.Tensor.item: "item",
        torch.Tensor.__float__: "__float__",
        torch.Tensor.tolist: "tolist",
    }
)
"""What a trace can often keep as a number that depends on data, and so is tried without first."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Whose decisions are kept as the example takes them."""

    owners: frozenset[str] | None
    """Paths of the modules whose own code decides; None: all that are not opaque."""
    numbers: bool = False
    """Also `item`, `float` and `tolist`, not only branches and counts."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One conversion of a tensor into a Python value."""

    kind: str
    place: str
    """The user's `file:line`."""
    line: str
    """The code there."""
    value: Any

    def __str__(self) -> str:
        return f"{self.place} `{self.line}` ({json.dumps(self.value)} in the example)"


class Recorder(TorchFunctionMode):
    """Notes the decisions of a run, or repeats them in a trace."""

    def __init__(self, model: nn.Module, recorded: Recorded) -> None:
        super().__init__()
        self.model = model
        self.recorded = recorded
        self.decisions: list[Decision] = []
        self.repeated: list[Decision] = []
        """Those that the last trace took too."""
        self.position: int | None = None
        """In a trace, the next decision to repeat; None in a run."""
        self.paused = 0
        self.drew = False
        """Whether the last run drew random numbers."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kinds = _NUMBERS if self.recorded.numbers else _CHOICES
        if self.paused or func not in kinds or not self._owned(sys._getframe(1)):
            return func(*args, **(kwargs or {}))
        kind, (file, number) = kinds[func], users_place(sys._getframe(1))
        place = f"{short_path(file)}:{number}"
        if self.position is not None:
            return self._repeat(kind, place, args[0])
        value = func(*args)
        line = linecache.getline(file, number).strip()
        self.decisions.append(Decision(kind, place, line, value))
        return value

    def _repeat(self, kind: str, place: str, tensor: torch.Tensor) -> Any:
        """The run's next decision at this place, with a check of it in the trace."""
        start = self.position or 0
        for index, decision in enumerate(self.decisions[start:], start):
            if (decision.kind, decision.place) == (kind, place):
                self.position = index + 1
                self.repeated.append(decision)
                torch.ops.stagecut.expect(tensor, json.dumps(decision.value), place)
                return decision.value
        raise TraceError(f"{place}: the trace decides by data here, and a run does not")

    def _owned(self, frame: FrameType | None) -> bool:
        if self.recorded.owners is None:
            return True
        paths = {id(module): name for name, module in self.model.named_modules()}
        while frame is not None:
            owner = paths.get(id(frame.f_locals.get("self")))
            if owner is not None:
                return owner in self.recorded.owners
            frame = frame.f_back
        return False

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """Inside, a trace takes the decisions noted so far."""
        self.position, self.repeated = 0, []
        with self:
            yield

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Inside, a run's decisions are noted, and whether it draws random numbers."""
        self.decisions, self.position = [], None
        before = torch.get_rng_state()
        with self:
            yield
        self.drew = not torch.equal(before, torch.get_rng_state())

    def aside(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """An opaque module's forward, whose decisions remain its own."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.paused += 1
            try:
                return forward(*args, **kwargs)
            finally:
                self.paused -= 1

        return call
