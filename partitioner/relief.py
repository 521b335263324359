"""Cuts of a problem that fits only if stages recompute some of their forward.

What a stage lacks of memory it buys with the seconds of running clusters again, a share of all it
has; the dynamic programme weighs both in one figure, so that a stage with many micro-batches in
flight gets less to do where that is cheaper than recomputing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray, Problem, Relief
from stagecut.ir.solution import Assignment, Solution
from stagecut.partitioner.arrays import sums
from stagecut.partitioner.bound import simple_bound
from stagecut.partitioner.certificate import quick_look
from stagecut.partitioner.dp import relieved_cut
from stagecut.partitioner.evaluate import LIMIT_TOLERANCE, evaluate
from stagecut.partitioner.orders import orders
from stagecut.partitioner.search import Search

_ORDERS = 5_000
"""Budget times clusters: orders cut; one at least."""
_WORTH_RELIEVING = 1.05
"""By this factor, since a share of the forward is at least a few percent of a stage."""


def may_gain(problem: Problem, bottleneck_seconds: float) -> bool:
    """Whether recomputing may pay for a cut that fits without: stages of equal work are faster."""
    return bottleneck_seconds > _WORTH_RELIEVING * simple_bound(problem)


def solve_relieved(problem: Problem, relief: Relief, time_limit: float = 10.0) -> Solution | None:
    """The best contiguous cut where stages may recompute; None if none of the orders has one.

    The solution's score is that of `problem` without memory limits and without recomputation:
    which clusters to recompute is for the caller to decide, who knows their storages.
    """
    unlimited = replace(problem, memory_limit_bytes=np.full(problem.n_stages, np.inf))
    search = Search(unlimited, time.monotonic() + time_limit)
    search.raise_bound(simple_bound(unlimited))
    best = None
    with search.trial("dp"):
        for name, order in islice(orders(problem), max(1, _ORDERS // max(problem.n, 1))):
            cut = None if best and search.out_of_time() else relieved_cut(problem, order, relief)
            if cut is not None and (best is None or cut.bottleneck < best[0]):
                best = cut.bottleneck, cut.assignment(order), name
        if best is None:
            return None
        search.offer(best[1], f"{best[2]}, stages recompute")
    quick_look(search)
    return search.solution()


@dataclass(frozen=True, slots=True, eq=False)
class Bought:
    """What the stages of an assignment recompute at least; arrays have shape [k]."""

    seconds: FloatArray
    """Added to the backward of a micro-batch."""
    freed_bytes: FloatArray
    """No longer saved, a micro-batch in flight."""
    replay_bytes: FloatArray
    """There again while it runs."""


def bought(problem: Problem, stage: IntArray, relief: Relief) -> Bought:
    """What each stage recomputes to stay within its memory, by the rule of the cut above.

    A stage for which all it can recompute is not enough recomputes all of it.
    """
    k, limit = problem.n_stages, problem.memory_limit_bytes
    lacking = evaluate(problem, Assignment(stage)).memory_bytes - limit
    replay, clusters = np.zeros(k), np.arange(problem.n)
    np.maximum.at(replay, stage, relief.replay_bytes)
    most = sums(stage, relief.freed_bytes, k)
    seconds = sums(stage, relief.seconds[problem.device_kind[stage], clusters], k)
    poor = lacking > 0
    needed = np.where(poor, (lacking + replay) / np.maximum(problem.in_flight, 1), 0.0)
    if relief.grain_bytes:
        needed = np.ceil(needed / relief.grain_bytes) * relief.grain_bytes
    freed = np.minimum(needed, most)
    share = freed / np.maximum(most, np.finfo(float).tiny)
    return Bought(seconds * share, freed, np.where(poor, replay, 0.0))


def lacks_memory(problem: Problem) -> bool:
    """Whether counting proves that nothing fits: every item is held by one stage at least.

    The most saved bytes a micro-batch that the stages have room for is what weights leave them,
    weights being held first where most micro-batches are in flight.
    """
    weights = float(problem.weight_bytes.sum())
    room = 0.0
    for stage in np.argsort(-problem.in_flight, kind="stable").tolist():
        limit = float(problem.memory_limit_bytes[stage])
        held = min(weights, limit)
        weights -= held
        room += (limit - held) / max(float(problem.in_flight[stage]), 1e-300)
    return weights > 0 or room * LIMIT_TOLERANCE < float(problem.saved_bytes.sum())
