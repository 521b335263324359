"""Iterated search over linear orders: shake the incumbent's, cut it optimally, keep what is better.

Random-key search with a dynamic programme as decoder, after Archer et al., "Practical Performance
Guarantees for Pipelined DNN Inference" (ICML 2024), here started from a good order and shaken by
little and much in turn. The generator's seed is fixed: the same problem gives the same steps.
"""

from __future__ import annotations

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray
from stagecut.partitioner.dp import cut_order
from stagecut.partitioner.orders import Precedence, precedence
from stagecut.partitioner.polish import polish, relinearise
from stagecut.partitioner.search import Search

_STRENGTHS = (0.02, 0.1, 0.3, 1.0, 3.0)
"""Standard deviation of the noise, in clusters of a mean stage."""
_PROMISING = 1.03
"""Cuts within this factor of the incumbent are polished."""
_WORK = 800_000
"""Steps times clusters and stages."""
_MOST_STEPS = 100
_PATIENCE = 25
"""Steps in a row that find nothing better, after which the search ends."""


def shake(search: Search, gap: float) -> None:
    """Improves the incumbent until within `gap` of the bound, stuck, or out of steps."""
    problem = search.problem
    if not search.feasible:
        return
    graph = precedence(problem)
    noise = np.random.default_rng(0)
    best, found_at = search.bottleneck_seconds, 0
    for step in range(min(_MOST_STEPS, _WORK // (problem.n * problem.n_stages))):
        if search.bottleneck_seconds < best:
            best, found_at = search.bottleneck_seconds, step
        if search.finished(gap) or step - found_at >= _PATIENCE:
            return
        order = relinearise(search.incumbent)
        spread = _STRENGTHS[step % len(_STRENGTHS)] * problem.n / problem.n_stages
        shaken = _shaken(graph, order, noise.normal(0.0, spread, problem.n))
        cut = cut_order(problem, shaken, search.bottleneck_seconds * _PROMISING)
        if cut is not None:
            search.offer(cut)
            search.offer(polish(problem, cut, shaken, search.out_of_time))


def _shaken(graph: Precedence, order: IntArray, noise: FloatArray) -> IntArray:
    """The topological order nearest to `order` with noise added to its positions."""
    position = np.empty(len(order))
    position[order] = np.arange(len(order))
    return graph.taken_by(graph.per_node(position + noise, barrier=-np.inf))
