"""Schedules: made by name, completed with communication, checked, simulated."""

from __future__ import annotations

from stagecut.partitioner.schedules.catalogue import SCHEDULES, make_schedule
from stagecut.partitioner.schedules.checker import check
from stagecut.partitioner.schedules.communication import expand
from stagecut.partitioner.schedules.flight import in_flight
from stagecut.partitioner.schedules.folded import folded
from stagecut.partitioner.schedules.forward_only import forward_on
from stagecut.partitioner.schedules.simulator import simulate
from stagecut.partitioner.schedules.text import (
    load_schedule,
    parse_schedule,
    print_schedule,
    schedule_of,
)

__all__ = [
    "SCHEDULES",
    "check",
    "expand",
    "folded",
    "forward_on",
    "in_flight",
    "load_schedule",
    "make_schedule",
    "parse_schedule",
    "print_schedule",
    "schedule_of",
    "simulate",
]
