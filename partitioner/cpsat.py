"""An integer programme solved by CP-SAT, where OR-Tools is installed (`stagecut[exact]`).

All its figures are whole numbers: coefficients are rounded down and limits up, so that whatever has
a load or a memory within a limit in exact figures has so in whole ones, and what is refuted in
these is refuted. What is found may be better than it is by the rounding: the caller scores it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np

from stagecut.partitioner.program import Outcome, Program

_STEPS = 1e7
"""Whole numbers to the unit: of time a hundredth of the bottleneck, of memory the largest limit."""
_WORK = 40.0
"""OR-Tools' count of its own work, about a second each, at effort 1."""


def installed() -> bool:
    """Whether OR-Tools is."""
    return find_spec("ortools") is not None


def solve(program: Program, time_limit: float, effort: float, gap: float) -> Outcome:
    """Stops at an amount of work, counted the same on every run, that grows with `effort`."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    columns = [model.new_int_var(0, top, "") for top in _tops(program)]
    for terms, limit in _rows(program):
        factors = [factor for _, factor in terms]
        among = [columns[column] for column, _ in terms]
        model.add(cp_model.LinearExpr.weighted_sum(among, factors) <= limit)
    model.minimize(columns[0])
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = _WORK * effort
    solver.parameters.max_time_in_seconds = time_limit
    solver.parameters.relative_gap_limit = gap
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return Outcome(none_exists=True)
    values = None
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        values = np.asarray([solver.value(column) for column in columns], dtype=np.float64)
    refuted = max(0.0, solver.best_objective_bound / _STEPS)
    return Outcome(values, finished=status == cp_model.OPTIMAL, refuted=refuted)


def _tops(program: Program) -> list[int]:
    """The greatest whole value of each variable."""
    each = zip(program.amount, program.most, strict=True)
    return [math.ceil(most * _STEPS) if amount else 1 for amount, most in each]


def _rows(program: Program) -> Iterator[tuple[list[tuple[int, int]], int]]:
    """Each row's terms in whole numbers, and its limit."""
    rows: dict[int, list[tuple[int, float]]] = defaultdict(list)
    entries = zip(program.rows, program.columns, program.coefficients, strict=True)
    for row, column, factor in entries:
        rows[row].append((column, factor))
    for row, terms in rows.items():
        logic = all(not program.amount[column] and abs(factor) == 1.0 for column, factor in terms)
        scales = [1.0 if logic or program.amount[column] else _STEPS for column, _ in terms]
        whole = [
            (column, math.floor(factor * scale))
            for (column, factor), scale in zip(terms, scales, strict=True)
        ]
        yield whole, math.ceil(program.limits[row] * (1.0 if logic else _STEPS))
