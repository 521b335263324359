"""The cells of `gaps.py` that stay above five percent: `auto` for 600 s, and CP-SAT beside it.

python -m benchmarks.cuts.longer FOLDER t5-11b,32 clip-l,16 ...

FOLDER is that of `gaps.py`; memory is ignored. CP-SAT (`pip install ortools`, no dependency of
Stagecut) gets the integer programme of `exact` in the windows that the bound leaves below the best
cut known, one worker, and as many seconds.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cuts.gaps import problems
from stagecut.ir.problem import Problem
from stagecut.ir.solution import Solution
from stagecut.partitioner import evaluate, solve
from stagecut.partitioner.bound import lower_bound
from stagecut.partitioner.milp import Program
from stagecut.partitioner.orders import narrowed

RESULTS = Path(__file__).parent / "longer.json"
SECONDS = 600.0
_STEPS = 1e7
"""Steps of a whole number to the unit of the programme's seconds, a hundredth of the bottleneck."""


def main() -> None:
    """Adds the cells named to longer.json."""
    folder, *cells = sys.argv[1:]
    for cell in cells:
        name, stages = cell.split(",")
        problem = problems(Path(folder), name)["problems"][int(stages)]
        free = replace(problem, memory_limit_bytes=np.full(int(stages), np.inf))
        started = time.perf_counter()
        found = solve(free, "auto", SECONDS)
        auto = {"gap": found.gap, "seconds": round(time.perf_counter() - started, 1)}
        _keep(cell, {"auto": auto})
        _keep(cell, {"auto": auto, "cp_sat": by_cp_sat(free, found)})


def by_cp_sat(problem: Problem, found: Solution) -> dict[str, Any]:
    """What CP-SAT finds and refutes in the windows below the cut that was found."""
    upper = found.evaluation.bottleneck_seconds
    bound = lower_bound(problem, upper, 0.0, lambda: False)
    low, high = narrowed(problem, bound.low, bound.high)
    program = Program(problem, low, high, upper)
    started = time.perf_counter()
    if not program.build(lambda: SECONDS - (time.perf_counter() - started)):
        return {"free": int((high - low).sum()), "note": "not built in time"}
    status, values, refuted = _solved(program)
    best = upper
    if values is not None:
        scored = evaluate(problem, program.assignment(np.asarray(values)))
        best = min(best, upper if scored.faults else scored.bottleneck_seconds)
    least = max(refuted * program.unit, found.lower_bound_seconds)
    return {
        "free": int((high - low).sum()),
        "status": status,
        "better_by": 1 - best / upper,
        "gap": best / least - 1,
        "seconds": round(time.perf_counter() - started, 1),
    }


def _solved(program: Program) -> tuple[str, list[float] | None, float]:
    """Status, values, and the refuted bound in the programme's units.

    Coefficients are rounded down and limits up, so that what is refuted is so in exact figures.
    """
    from ortools.sat.python import cp_model

    model, rows = cp_model.CpModel(), defaultdict(list)
    columns: list[Any] = []
    for whole, most in zip(program.whole, program.most, strict=True):
        top = 1 if whole or most == 1.0 else math.ceil(most * _STEPS)
        columns.append(model.new_int_var(0, top, ""))
    for row, column, value in zip(program.rows, program.columns, program.coefficients, strict=True):
        rows[row].append((column, value))
    in_steps = {i for i, most in enumerate(program.most) if not program.whole[i] and most != 1.0}
    for row, terms in rows.items():
        limit = program.limits[row]
        counts = all(column not in in_steps and value in (1.0, -1.0) for column, value in terms)
        scale = 1.0 if counts else _STEPS
        model.add(
            sum(
                math.floor(value * (1.0 if column in in_steps else scale)) * columns[column]
                for column, value in terms
            )
            <= math.ceil(limit * scale)
        )
    model.minimize(columns[0])
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = SECONDS
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    name = solver.status_name(status)
    if status == cp_model.INFEASIBLE:
        return name, None, program.most[0]
    values = None
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        values = [float(solver.value(column)) for column in columns]
    return name, values, solver.best_objective_bound / _STEPS


def _keep(cell: str, made: dict[str, Any]) -> None:
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(known | {cell: made}, indent=1) + "\n")
    print(cell, made, flush=True)


if __name__ == "__main__":
    main()
