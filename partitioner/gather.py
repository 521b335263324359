"""Relays: what many stages make of one value is made in one of them, and passed on from there.

A position bias or a mask that every later layer uses is sent to each of their stages, over slow
links as well. Where the layers begin by something cheap with it (adding a mask, a cast, a view),
one stage can do that for all layers after it: it alone takes the value, and sends its neighbours
what they need. No move of one cluster gets there, since a stage saves its transfer only once all
its layers are served, and no order of the graph that follows the layers does either.

Every value that is sent far, and every stage to gather its users in, is tried; the order that comes
of it is cut anew, with transfers priced for it, which makes room for the work that was gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray, Problem
from stagecut.ir.solution import Assignment
from stagecut.partitioner.dp import cut_order
from stagecut.partitioner.evaluate import evaluate, round_trip_seconds, score, touched
from stagecut.partitioner.polish import polish, relinearise

_MOST_VALUES, _ROUNDS = 3, 6
_WORTH = 0.02
"""The least share of the bottleneck that a value's transfers take to be gathered."""


def gather(problem: Problem, assignment: Assignment, out_of_time: Callable[[], bool]) -> Assignment:
    """Improves a valid assignment by relays until none helps, or time is over."""
    best, best_score = assignment, score(evaluate(problem, assignment))
    for _ in range(_ROUNDS):
        start, before = best, best_score[1]
        for gathered in _gatherings(problem, start, before):
            if out_of_time():
                return best
            cut = cut_order(problem, relinearise(gathered), best_score[1], gathered)
            if cut is None:
                continue
            reached = score(evaluate(problem, cut))
            if reached < best_score:
                best, best_score = cut, reached
        if not best_score[1] < before:
            return best
        best = polish(problem, best, None, out_of_time)
        best_score = score(evaluate(problem, best))
    return best


def _gatherings(
    problem: Problem, assignment: Assignment, bottleneck_seconds: float
) -> Iterator[Assignment]:
    """Assignments in which a value's later users all come as early as one of their stages."""
    stage = assignment.stage
    for value in _sent_most(problem, stage, bottleneck_seconds).tolist():
        users = problem.values[value][1:]
        for first in np.unique(stage[users])[:-1].tolist():
            gathered = _gathered(problem, stage, users, first)
            if not np.array_equal(gathered, stage):
                yield Assignment(gathered)


def _sent_most(problem: Problem, stage: IntArray, bottleneck_seconds: float) -> IntArray:
    """The values whose transfers take most, if they take enough."""
    value, at = touched(problem.values, stage, problem.n_stages)
    producer = stage[problem.values.members[problem.values.offsets[:-1]]]
    away = at != producer[value]
    stages = np.bincount(value[away], minlength=len(problem.values))
    paid: FloatArray = stages * round_trip_seconds(problem, 0, problem.n_stages - 1)
    paid[stages < 2] = 0.0
    most = np.argsort(-paid, kind="stable")[:_MOST_VALUES]
    return most[paid[most] > _WORTH * bottleneck_seconds]


def _gathered(problem: Problem, stage: IntArray, users: IntArray, first: int) -> IntArray:
    """`stage` with the users after stage `first` in it, where all that they need is there."""
    source, destination = problem.edges.T
    latest = np.zeros_like(stage)
    np.maximum.at(latest, destination, stage[source])
    gathered = stage.copy()
    moved = users[(stage[users] > first) & (latest[users] <= first) & (problem.pins[users] < 0)]
    gathered[moved] = first
    return gathered
