"""Schedules: made by name, completed with communication, checked, simulated."""

from __future__ import annotations

from stagecut.partitioner.schedules.catalogue import SCHEDULES, make_schedule
from stagecut.partitioner.schedules.checker import check
from stagecut.partitioner.schedules.communication import expand
from stagecut.partitioner.schedules.flight import in_flight
from stagecut.partitioner.schedules.simulator import simulate

__all__ = ["SCHEDULES", "check", "expand", "in_flight", "make_schedule", "simulate"]
