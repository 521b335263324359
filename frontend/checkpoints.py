"""Activation checkpointing in the user's model, which tracing erases, kept as marks on the nodes.

`torch.utils.checkpoint` holds a hook of its own on autograd's saved tensors while a region runs.
The hook tells one region from the next; its identity goes onto every node made meanwhile.

The one file that reads the hook stack and `torch.fx.traceback`, which torch does not call public;
`tests/frontend/test_checkpoints.py` notices when they change.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import fx
from torch.fx import traceback
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from stagecut.frontend.sources import users_line
from stagecut.ir.errors import TraceError

_MARK = "stagecut_recompute"
_REENTRANT = CheckpointFunction.forward.__code__
_DEPTH = 12
"""Frames between a region's start and this file."""


@contextmanager
def marked_checkpoints() -> Iterator[None]:
    """Inside, traced nodes are marked with the checkpointed region that made them.

    Raises:
        TraceError: a region is reentrant, which a trace cannot tell from `no_grad`.
    """
    with traceback.preserve_node_meta(), _Watch():
        yield


def region_of(node: fx.Node) -> int | None:
    """The number of the checkpointed region that made a node; None outside of all."""
    marked = (node.meta.get("custom") or {}).get(_MARK)
    return None if marked is None else int(marked)


class _Watch(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.hooks: list[Any] = []
        """Of the regions met, in order; kept, so that no two have one identity."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch._C._set_grad_enabled:
            _refuse_reentrant(sys._getframe(1))
        region = self._region()
        if region is None:
            return func(*args, **(kwargs or {}))
        with traceback.annotate({_MARK: region}):
            return func(*args, **(kwargs or {}))

    def _region(self) -> int | None:
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        if not hooks or not hooks[0].__qualname__.startswith("_checkpoint_hook"):
            return None
        for number in range(len(self.hooks) - 1, -1, -1):
            if self.hooks[number] is hooks[0]:
                return number
        self.hooks.append(hooks[0])
        return len(self.hooks) - 1


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
