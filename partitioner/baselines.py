"""What cutting by hand usually does: equal counts of something, in program order. Baselines."""

from __future__ import annotations

import numpy as np

from stagecut.ir.errors import ArgumentError
from stagecut.ir.problem import FloatArray, IntArray, Problem
from stagecut.ir.solution import Assignment
from stagecut.partitioner.arrays import sums
from stagecut.partitioner.orders import precedence
from stagecut.partitioner.stage_costs import pin_windows


def uniform(problem: Problem) -> Assignment:
    """Equal numbers of clusters a stage.

    Raises:
        InfeasibleError: the pins contradict the edges.
    """
    return _equal_shares(problem, np.ones(problem.n))


def parameters(problem: Problem) -> Assignment:
    """Equal weight bytes a stage; a weight with several users counts at its first.

    Raises:
        InfeasibleError: the pins contradict the edges.
    """
    used = np.diff(problem.weights.offsets) > 0
    first = problem.weights.members[problem.weights.offsets[:-1][used]]
    held = sums(first, problem.weight_bytes[used], problem.n)
    return _equal_shares(problem, held if held.any() else np.ones(problem.n))


def layers(problem: Problem) -> Assignment:
    """Equal numbers of modules a stage: each module counts where the program enters it.

    Raises:
        ArgumentError: the problem has no module names.
        InfeasibleError: the pins contradict the edges.
    """
    if not problem.scopes:
        raise ArgumentError("the problem has no module names to count; use method='uniform'")
    entered: set[str] = set()
    starts = np.zeros(problem.n)
    for cluster, scope in enumerate(problem.scopes):
        starts[cluster] = scope not in entered
        entered.add(scope)
    return _equal_shares(problem, starts)


def _equal_shares(problem: Problem, amount: FloatArray) -> Assignment:
    """Cuts program order where each further k-th part of `amount` [n] has begun.

    Pins move the boundaries they must, and no stage is left empty while clusters suffice.
    """
    graph = precedence(problem)
    order = graph.clusters(np.arange(len(graph)))
    k, n = problem.n_stages, problem.n
    filled = np.concatenate([[0.0], np.cumsum(amount[order])])
    boundaries = np.searchsorted(filled, filled[-1] * np.arange(k + 1) / k, side="left")
    stage = np.empty(n, dtype=np.int64)
    stage[order] = np.repeat(np.arange(k), np.diff(_legal(problem, order, boundaries)))
    return Assignment(stage)


def _legal(problem: Problem, order: IntArray, boundaries: IntArray) -> IntArray:
    """The boundaries moved into the windows of the pins, and apart from each other."""
    stages = np.arange(problem.n_stages + 1)
    if problem.n >= problem.n_stages:
        boundaries = np.maximum.accumulate(boundaries - stages) + stages
        boundaries = np.minimum(boundaries, problem.n - stages[::-1])
    return np.clip(boundaries, *pin_windows(problem, order))
