"""A plan's figures as plain data for other programs, without the graph."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from stagecut.ir.data import to_data
from stagecut.ir.plan import Plan

_TOO_LONG = ("graph", "stages_of_ops")


def summary(plan: Plan) -> dict[str, Any]:
    """Every field of the plan but the graph, with the derived figures people ask for.

    Seconds, bytes and FLOPs; infinities are the text "inf", which JSON has no number for.
    """
    names = [f.name for f in fields(plan) if f.name not in _TOO_LONG]
    data = {name: to_data(getattr(plan, name)) for name in names}
    for stage, figures in zip(plan.stages, data["stages"], strict=True):
        figures["seconds"] = stage.seconds
        figures["memory"]["total"] = stage.memory.total
        figures["memory"]["fits"] = stage.memory.fits
    gap = plan.gap if math.isfinite(plan.gap) else str(plan.gap)
    return {"model": plan.graph.name, "fingerprint": plan.fingerprint, "gap": gap, **data}
