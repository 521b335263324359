"""What windows make stages pay beyond the least that any assignment would.

The binned bound charges an item at the cheapest link, once a stage. Where the windows of the
clusters show that a value comes from another node, or that its maker sends it to several stages
(prices.py), every stage that surely pays for it pays the difference too. Position biases and
encoder outputs, used by all later layers, are what this is for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray, Problem
from stagecut.partitioner.prices import windows_with_prices
from stagecut.partitioner.relaxed import Relaxed


@dataclass(frozen=True, slots=True, eq=False)
class Surcharges:
    """By stage and value, shape [k, raisable] each, in seconds; 0 or more."""

    entering: FloatArray
    """For a value made in an earlier stage."""
    leaving: FloatArray
    """For a value made in this stage and used in a later one."""


def surcharges(problem: Problem, relaxed: Relaxed, low: IntArray, high: IntArray) -> Surcharges:
    """What is paid for `relaxed.raisable` where cluster c is in stages low[c]..high[c]."""
    paid = windows_with_prices(problem, low, high, 1.0).paid
    charged = relaxed.costs[:, relaxed.raisable]
    return Surcharges(
        np.maximum(paid.entering[:, relaxed.raisable] - charged[relaxed.entering_price], 0.0),
        np.maximum(paid.leaving[:, relaxed.raisable] - charged[relaxed.leaving_price], 0.0),
    )
