"""One model of the zoo through Stagecut: traced, and trained at 2, 3 and 4 stages."""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
from torch import nn

from stagecut.frontend import trace
from tests.zoo.checking import parts, traced_once, train_split, train_unsplit
from tests.zoo.entry import Entry

STAGES = (2, 3, 4)


def measure(entry: Entry) -> dict[str, Any]:
    """The frontend taken, seconds of the trace, ops, opaque modules, and what each cut gave."""
    torch.manual_seed(0)
    model, inputs = entry.build()
    row: dict[str, Any] = {}
    try:
        start = time.process_time()
        found = trace(model, (), parts(inputs)[0], split=dict(entry.options).get("split"))
        row["seconds"] = round(time.process_time() - start, 2)
    except Exception as error:  # a table of outcomes: every failure is one
        return {"fault": _first_line(error)}
    row |= {"frontend": found.frontend.split(":")[0], "nodes": len(found.graph.ops)}
    row["opaque"] = len(found.means.opaque)
    row["fx"] = _by_fx(model)
    unsplit = copy.deepcopy(model)
    losses, gradients = train_unsplit(entry, unsplit, inputs)
    with traced_once():
        for n_stages in STAGES:
            try:
                train_split(entry, copy.deepcopy(model), inputs, n_stages, losses, gradients)
                row[f"equal_{n_stages}"] = "equal"
            except Exception as error:
                row[f"equal_{n_stages}"] = _first_line(error)
    return row


def _by_fx(model: nn.Module) -> str:
    """Whether `torch.fx.symbolic_trace` takes the model; what it would lose is not looked at."""
    try:
        torch.fx.symbolic_trace(copy.deepcopy(model))
    except Exception as error:
        return _first_line(error)
    return "traced"


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:110]}"
