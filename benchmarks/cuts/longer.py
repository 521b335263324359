"""The cells of `gaps.py` that stay above five percent: `auto` for 600 s, and CP-SAT beside it.

python -m benchmarks.cuts.longer FOLDER t5-11b,32 clip-l,16 ...

FOLDER is that of `gaps.py`; memory is ignored. CP-SAT (the extra `exact`) gets the programme
of the method `exact` in the windows that the bound leaves below the best cut known, one worker and
as many seconds.
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cuts.gaps import problems
from stagecut.ir.problem import Problem
from stagecut.ir.solution import Solution
from stagecut.partitioner import cpsat, evaluate, solve
from stagecut.partitioner.bound import lower_bound
from stagecut.partitioner.orders import narrowed
from stagecut.partitioner.program import Program

RESULTS = Path(__file__).parent / "longer.json"
SECONDS = 600.0


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
    outcome = cpsat.solve(program, SECONDS, math.inf, 0.0)
    best = upper
    if outcome.values is not None:
        scored = evaluate(problem, program.assignment(outcome.values))
        best = min(best, upper if scored.faults else scored.bottleneck_seconds)
    refuted = upper if outcome.none_exists else outcome.refuted * program.unit
    return {
        "free": int((high - low).sum()),
        "better_by": 1 - best / upper,
        "gap": best / max(refuted, found.lower_bound_seconds) - 1,
        "seconds": round(time.perf_counter() - started, 1),
    }


def _keep(cell: str, made: dict[str, Any]) -> None:
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(known | {cell: made}, indent=1) + "\n")
    print(cell, made, flush=True)


if __name__ == "__main__":
    main()
