"""The baseline of equal counts: what cutting by hand usually does."""

from __future__ import annotations

import numpy as np

from stagecut.ir.problem import Problem
from stagecut.ir.solution import Assignment
from stagecut.partitioner.dp import pin_windows
from stagecut.partitioner.orders import precedence


def uniform(problem: Problem) -> Assignment:
    """Equal numbers of clusters a stage, in program order; pins move the boundaries they must.

    Raises:
        InfeasibleError: the pins contradict the edges.
    """
    graph = precedence(problem)
    order = graph.clusters(np.arange(len(graph)))
    low, high = pin_windows(problem, order)
    k, n = problem.n_stages, problem.n
    boundaries = np.clip(np.arange(k + 1) * n // k, low, high)
    stage = np.empty(n, dtype=np.int64)
    stage[order] = np.repeat(np.arange(k), np.diff(boundaries))
    return Assignment(stage)
