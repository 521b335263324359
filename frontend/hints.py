"""Branches on data inside torch that choose a faster kernel and never another result.

`nn.Transformer` compares a mask with the causal one, to tell attention that it is causal. A trace
cannot look at values; the answer "unknown, use the mask" is always right.
"""

from __future__ import annotations

from types import FrameType

import torch
from torch.nn.modules import transformer

from stagecut.frontend.calls import Call
from stagecut.frontend.sources import users_line

_ASKS_FOR_SPEED = frozenset({transformer._detect_is_causal_mask.__code__})
_DEPTH = 8
"""Frames between the comparison and this file: torch.export's own modes lie between."""


def asks_for_speed(call: Call) -> bool:
    """Whether a call asks a tensor for such a hint."""
    if call.function is not torch.Tensor.__bool__:
        return False
    frame: FrameType | None = call.frame
    for _ in range(_DEPTH):
        if frame is None:
            return False
        if frame.f_code in _ASKS_FOR_SPEED:
            return True
        frame = frame.f_back
    return False


class Lengths:
    """Notes where `len(tensor)` is asked: it fixes a size that `tensor.shape[0]` leaves open."""

    def __init__(self) -> None:
        self.places: dict[str, None] = {}

    def look(self, call: Call) -> None:
        """Notes the user's line of such a call."""
        if call.function is torch.Tensor.__len__:
            self.places[users_line(call.frame)] = None
