"""Stagecut: a compiler for pipeline parallelism in PyTorch.

    plan = stagecut.partition(model, 4, example_args=(x,))
    pipe = stagecut.pipeline(plan, model, loss_fn=loss)

Names are resolved on first use, so that importing the package loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagecut.api import partition, pipeline
    from stagecut.codegen.folder import load_stage
    from stagecut.ir.device import Cluster, Device
    from stagecut.ir.errors import StagecutError
    from stagecut.plan import Plan

__all__ = [
    "Cluster",
    "Device",
    "Plan",
    "StagecutError",
    "load_stage",
    "partition",
    "pipeline",
]


def __getattr__(name: str) -> Any:
    homes = {
        "Cluster": "stagecut.ir.device",
        "Device": "stagecut.ir.device",
        "Plan": "stagecut.plan",
        "StagecutError": "stagecut.ir.errors",
        "load_stage": "stagecut.codegen.folder",
        "partition": "stagecut.api",
        "pipeline": "stagecut.api",
    }
    if name not in homes:
        raise AttributeError(f"module 'stagecut' has no attribute {name!r}")
    return getattr(import_module(homes[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
