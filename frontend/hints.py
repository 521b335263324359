"""Branches on data inside torch that choose a faster kernel and never another result.

`nn.Transformer` compares a mask with the causal one, to tell attention that it is causal. A trace
cannot look at values; the answer "unknown, use the mask" is always right.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode

from stagecut.frontend.sources import users_line

_ASKS_FOR_SPEED = frozenset({transformer._detect_is_causal_mask.__code__})
_DEPTH = 8
"""Frames between the comparison and this file: torch.export's own modes lie between."""


class SpeedHints(TorchFunctionMode):
    """While tracing, answers False where torch asks a tensor for a hint alone."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Passes every call on but that one."""
        if func is torch.Tensor.__bool__ and _for_speed(sys._getframe(1)):
            return False
        return func(*args, **(kwargs or {}))


def _for_speed(frame: FrameType | None) -> bool:
    for _ in range(_DEPTH):
        if frame is None:
            return False
        if frame.f_code in _ASKS_FOR_SPEED:
            return True
        frame = frame.f_back
    return False


class Lengths(TorchFunctionMode):
    """Notes where `len(tensor)` is asked: it fixes a size that `tensor.shape[0]` leaves open."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, None] = {}

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Passes every call on."""
        if func is torch.Tensor.__len__:
            self.places[users_line(sys._getframe(1))] = None
        return func(*args, **(kwargs or {}))
