"""`torch.inference_mode` inside a forward that trains.

with torch.inference_mode():        traced, the region is not marked at all, and its weights
    gate = self.gate(x)             would get gradients that the model does not give them
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch

from stagecut.frontend.sources import users_line
from stagecut.ir.errors import TraceError


def refuse_inference_mode(func: Any, frame: FrameType) -> None:
    """Refuses a call, in a model that trains, in inference mode.

    Raises:
        TraceError: names the user's line.
    """
    if torch.is_inference_mode_enabled():
        raise TraceError(
            f"{users_line(frame)}: a trace would lose torch.inference_mode() and give its weights "
            "gradients; write torch.no_grad(), or put it in a module of its own, which then runs "
            "as it is"
        )
