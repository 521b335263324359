"""An integer programme solved by HiGHS, through scipy."""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import coo_array

from stagecut.partitioner.program import Outcome, Program

_NODES = 20_000_000
"""Branch-and-bound nodes times nonzero coefficients, at effort 1."""
_WHOLE, _NONZEROS = 15_000, 680_000
"""Whole variables and nonzero coefficients at effort 1. Below it, programmes with more of both are
not tried: a single node may take a minute."""
_OPTIMAL, _NONE_EXISTS, _SOLVER_ERROR = 0, 2, 4
_AT_ITS_LIMIT = "Solution limit reached"
"""Said with the status of an error, where all nodes allowed were searched without a solution."""


def solve(program: Program, time_limit: float, effort: float, gap: float) -> Outcome:
    """Stops at a number of nodes that falls with the programme's size and grows with `effort`."""
    if effort < 1 and sum(program.whole) > _WHOLE * effort and program.size > _NONZEROS * effort:
        return Outcome()
    solved = _run(program, time_limit, effort, gap, presolve=True)
    if solved.status == _SOLVER_ERROR and _AT_ITS_LIMIT not in solved.message:
        solved = _run(program, time_limit, effort, gap, presolve=False)
    return Outcome(
        solved.x,
        finished=solved.status == _OPTIMAL,
        none_exists=solved.status == _NONE_EXISTS,
        refuted=solved.mip_dual_bound or 0.0,  # None where it stopped before it had any
    )


def _run(
    program: Program, time_limit: float, effort: float, gap: float, presolve: bool
) -> OptimizeResult:
    shape = (len(program.limits), len(program.most))
    entries = (program.coefficients, (program.rows, program.columns))
    matrix = coo_array(entries, shape=shape).tocsr()
    objective = np.zeros(len(program.most))
    objective[0] = 1.0
    return milp(
        objective,
        integrality=np.asarray(program.whole),
        bounds=Bounds(np.zeros(len(program.most)), np.asarray(program.most)),
        constraints=LinearConstraint(matrix, -np.inf, np.asarray(program.limits)),
        options={
            "time_limit": time_limit,
            "node_limit": max(1, int(_NODES * effort / program.size)),
            "mip_rel_gap": max(gap, 1e-7),
            "presolve": presolve,
        },
    )
