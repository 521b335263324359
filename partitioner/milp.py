"""The exact optimum by integer programming, in the windows that the lower bound leaves."""

from __future__ import annotations

from collections.abc import Callable

from stagecut.ir.problem import IntArray, Problem
from stagecut.partitioner import cpsat, highs
from stagecut.partitioner.downsets import Answer
from stagecut.partitioner.evaluate import evaluate
from stagecut.partitioner.program import CLOSER, UNITS, Program


def best_by_milp(
    problem: Problem,
    low: IntArray,
    high: IntArray,
    upper: float,
    seconds_left: Callable[[], float],
    effort: float = 1.0,
    gap: float = 0.0,
) -> Answer:
    """The best assignment, to within `gap`, below a bottleneck of `upper` and in stages low..high.

    CP-SAT solves it where it is installed, else HiGHS; both stop at an amount of work that grows
    with `effort`, or where no seconds are left.
    """
    program = Program(problem, low, high, upper)
    if not program.build(seconds_left):
        return Answer(None, complete=False)
    solver = cpsat if cpsat.installed() else highs
    outcome = solver.solve(program, seconds_left(), effort, gap)
    if outcome.none_exists:
        return Answer(None, complete=True)
    refuted = outcome.refuted * program.unit * CLOSER
    if outcome.values is None:
        return Answer(None, complete=False, refuted_seconds=refuted)
    found = program.assignment(outcome.values)
    finished = outcome.finished and gap == 0
    scored = evaluate(problem, found)
    if scored.faults or scored.bottleneck_seconds >= upper:
        # Better than the incumbent only by the solver's tolerances.
        return Answer(None, finished and outcome.refuted >= UNITS * CLOSER**2, refuted)
    return Answer(found, finished, refuted)
