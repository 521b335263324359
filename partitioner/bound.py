"""What no assignment can beat.

Legend:  W work, k stages, t device kinds.
"""

from __future__ import annotations

import numpy as np

from stagecut.ir.problem import FloatArray, Problem

SAFETY = 1 - 1e-9
"""Bounds are lowered by this, so that rounding never makes one exceed the optimum."""


def simple_bound(problem: Problem) -> float:
    """The larger of the mean load and the largest cluster, in O(t n)."""
    seconds = problem.forward_seconds + problem.backward_seconds
    if not problem.n:
        return 0.0
    largest = _on_its_stage(problem, seconds).max()
    return max(_mean_load(problem, seconds), float(largest)) * SAFETY


def _mean_load(problem: Problem, seconds: FloatArray) -> float:
    """Work over devices, for devices that differ.

    For any weights y over the stages with sum 1, the bottleneck is at least the weighted mean of
    the loads, and that at least the sum over clusters of the least y_s * seconds on s. Weights in
    proportion to speed make it tight where one kind is as much faster for every cluster.
    """
    work = seconds.sum(axis=1)[problem.device_kind]
    if not work.all():
        return 0.0
    weight = (1 / work) / (1 / work).sum()
    kinds = np.unique(problem.device_kind)
    least = np.asarray([weight[problem.device_kind == kind].min() for kind in kinds])
    return float((least[:, None] * seconds[kinds]).min(axis=0).sum())


def _on_its_stage(problem: Problem, seconds: FloatArray) -> FloatArray:
    """Seconds [n] of each cluster on the best device its pin allows."""
    best = seconds[np.unique(problem.device_kind)].min(axis=0)
    pinned = problem.pins >= 0
    kind = problem.device_kind[problem.pins]
    return np.where(pinned, seconds[kind, np.arange(problem.n)], best)
