"""The search over replicas, pipeline depth, micro-batches and schedules, by simulated step time."""

from __future__ import annotations

from stagecut.partitioner.planning.choices import Choice, Space, choices
from stagecut.partitioner.planning.costing import Costed, between
from stagecut.partitioner.planning.search import Setting, search

__all__ = ["Choice", "Costed", "Setting", "Space", "between", "choices", "search"]
