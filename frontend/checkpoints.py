"""Activation checkpointing in the user's model, which tracing erases, kept as marks on the nodes.

`torch.utils.checkpoint` holds a hook of its own on autograd's saved tensors while a region runs.
The hook tells one region from the next; its identity goes onto every node made meanwhile.

The one file that reads the hook stack and `torch.fx.traceback`, which torch does not call public;
`tests/frontend/test_checkpoints.py` notices when they change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

import torch
from torch import fx
from torch.fx import traceback
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from stagecut.frontend.calls import Call
from stagecut.frontend.sources import users_line
from stagecut.ir.errors import TraceError

_MARK = "stagecut_recompute"
_REENTRANT = CheckpointFunction.forward.__code__
_DEPTH = 12
"""Frames between a region's start and this file."""


@contextmanager
def marked_checkpoints() -> Iterator[Regions]:
    """Inside, nodes traced within `Regions.mark` are marked with the region that made them."""
    with traceback.preserve_node_meta():
        yield Regions()


def region_of(node: fx.Node) -> int | None:
    """The number of the checkpointed region that made a node; None outside of all."""
    marked = (node.meta.get("custom") or {}).get(_MARK)
    return None if marked is None else int(marked)


class Regions:
    """The checkpointed regions of one trace."""

    def __init__(self) -> None:
        self.hooks: list[Any] = []
        """Of the regions met, in order; kept, so that no two have one identity."""
        self.recognised = recognised()

    def look(self, call: Call) -> None:
        """Refuses a call that starts a reentrant region.

        Raises:
            TraceError: a trace cannot tell it from `no_grad`.
        """
        if call.function is torch._C._set_grad_enabled:
            _refuse_reentrant(call.frame)

    def mark(self) -> AbstractContextManager[None] | None:
        """What a call of the present region runs in; None outside of all."""
        region = self._region() if self.recognised else None
        return None if region is None else traceback.annotate({_MARK: region})

    def _region(self) -> int | None:
        hooks = _hooks()
        if hooks is None:
            return None
        for number in range(len(self.hooks) - 1, -1, -1):
            if self.hooks[number] is hooks[0]:
                return number
        self.hooks.append(hooks[0])
        return len(self.hooks) - 1


def recognised() -> bool:
    """Whether this torch shows which ops a checkpointed region holds."""
    seen: list[Any] = []

    def region(x: torch.Tensor) -> torch.Tensor:
        seen.append(_hooks())
        return x

    with torch.enable_grad():
        checkpoint(region, torch.zeros(()), use_reentrant=False, preserve_rng_state=False)
    return seen != [None]


def _hooks() -> Any:
    """The pair of hooks of the checkpointed region that runs; None outside of all."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    hooks = top(False) if top else None
    return hooks if hooks and hooks[0].__qualname__.startswith("_checkpoint_hook") else None


def _refuse_reentrant(frame: FrameType | None) -> None:
    for _ in range(_DEPTH):
        if frame is None:
            return
        if frame.f_code is _REENTRANT:
            raise TraceError(
                f"{users_line(frame)}: checkpoint(..., use_reentrant=True) cannot be traced: its "
                "region looks like no_grad and would lose its gradients. Pass use_reentrant=False; "
                "the results are the same"
            )
        frame = frame.f_back
