"""What forward does and a trace of it shows nothing of.

with torch.inference_mode():        the region is not marked: in training, its weights would
    gate = self.gate(x)             get gradients that the model does not give them
self.mean.data = mean               the write is missing, and what was assigned is not read
self.a.weight.requires_grad = False the weight would get gradients all the same
"""

from __future__ import annotations

import torch
from torch import nn

from stagecut.frontend.calls import Call
from stagecut.frontend.sources import users_line
from stagecut.ir.errors import TraceError

_REMEDY = "or put it into a module of its own, which then runs as it is"
_ASSIGN = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_SWITCH = torch.Tensor.requires_grad.__set__  # type: ignore[attr-defined]


def refuse_inference_mode(call: Call) -> None:
    """Refuses a call in inference mode, in a model that trains.

    Raises:
        TraceError: names the user's line.
    """
    if torch.is_inference_mode_enabled():
        raise TraceError(
            f"{users_line(call.frame)}: a trace would lose torch.inference_mode() and give its "
            f"weights gradients; write torch.no_grad(), {_REMEDY}"
        )


def refuse_assigned_data(call: Call) -> None:
    """Refuses an assignment to a tensor's `.data`.

    Raises:
        TraceError: names the user's line.
    """
    if _sets(call, _ASSIGN):
        raise TraceError(
            f"{users_line(call.frame)}: a trace would lose the assignment to .data; write .copy_() "
            f"under torch.no_grad(), {_REMEDY}"
        )


def refuse_switched_weight(call: Call) -> None:
    """Refuses a change of a weight's `requires_grad`, in a model that trains.

    Raises:
        TraceError: names the user's line.
    """
    if call.function == torch.Tensor.requires_grad_:
        wanted = call.args[1] if len(call.args) > 1 else call.kwargs.get("requires_grad", True)
    elif _sets(call, _SWITCH):
        wanted = call.args[1]
    else:
        return
    tensor = call.args[0]
    if isinstance(tensor, nn.Parameter) and tensor.requires_grad != wanted:
        raise TraceError(
            f"{users_line(call.frame)}: a trace would lose that a weight's requires_grad becomes "
            f"{wanted} here; set it before planning, {_REMEDY}"
        )


def _sets(call: Call, setter: object) -> bool:
    """Whether a call assigns to an attribute; compared only where it may, since most read one."""
    return getattr(call.function, "__name__", "") == "__set__" and call.function == setter
