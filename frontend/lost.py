"""What forward does and a trace of it shows nothing of.

with torch.inference_mode():        the region is not marked: in training, its weights would
    gate = self.gate(x)             get gradients that the model does not give them
self.mean.data = mean               the write is missing, and what was assigned is not read
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch

from stagecut.frontend.sources import users_line
from stagecut.ir.errors import TraceError

_REMEDY = "or put it into a module of its own, which then runs as it is"
_ASSIGN = torch.Tensor.data.__set__  # type: ignore[attr-defined]


def refuse_inference_mode(func: Any, frame: FrameType) -> None:
    """Refuses a call in inference mode, in a model that trains.

    Raises:
        TraceError: names the user's line.
    """
    if torch.is_inference_mode_enabled():
        raise TraceError(
            f"{users_line(frame)}: a trace would lose torch.inference_mode() and give its weights "
            f"gradients; write torch.no_grad(), {_REMEDY}"
        )


def refuse_assigned_data(func: Any, frame: FrameType) -> None:
    """Refuses an assignment to a tensor's `.data`.

    Raises:
        TraceError: names the user's line.
    """
    if getattr(func, "__name__", "") == "__set__" and func == _ASSIGN:
        raise TraceError(
            f"{users_line(frame)}: a trace would lose the assignment to .data; write .copy_() "
            f"under torch.no_grad(), {_REMEDY}"
        )
