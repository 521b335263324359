"""Why nothing fits, and the nearest thing that would."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stagecut.ir.errors import InfeasibleError
from stagecut.ir.problem import FloatArray, IntArray, Problem
from stagecut.ir.solution import Assignment, Evaluation
from stagecut.partitioner.dp import least_missing_bytes
from stagecut.partitioner.evaluate import evaluate

_ORDERS_ALONE = ("dp", "metis")
"""Methods that search no further than the cuts of some orders."""


def check_counts(problem: Problem) -> None:
    """Refuses more stages than clusters.

    Raises:
        InfeasibleError: there is not one cluster for each stage.
    """
    if not problem.n:
        raise InfeasibleError("there is nothing to cut: no op runs between inputs and outputs")
    if problem.n < problem.n_stages and not problem.allow_empty:
        raise InfeasibleError(
            f"{problem.n_stages} stages need at least as many groups of ops that may be cut apart, "
            f"and the model has {problem.n}; ask for {problem.n} stages or fewer"
        )


def baseline_infeasible(method: str, faults: tuple[str, ...]) -> InfeasibleError:
    """The error where a baseline's one assignment breaks constraints."""
    return InfeasibleError(
        f"method {method!r} takes no account of constraints and breaks {len(faults)} here: "
        f"{'; '.join(faults)}. Use method='auto', which keeps them where that is possible"
    )


def infeasible(
    problem: Problem, orders: Iterable[IntArray], proved: bool, method: str
) -> InfeasibleError:
    """The error that says what stands in the way, from the nearest cut of `orders`.

    `proved` where there is surely no valid assignment; `method` is what found none.
    """
    found = [least_missing_bytes(problem, order) for order in orders]
    cuts = [cut for cut in found if cut is not None]
    if not cuts and method in _ORDERS_ALONE and not proved:
        return InfeasibleError(
            f"method {method!r} cuts a few orders of the model, and in none of them is there a cut "
            f"into {problem.n_stages} non-empty stages with the pinned groups of ops where they "
            "are pinned; method='auto' looks further"
        )
    if not cuts:
        return InfeasibleError(_pins_leave_a_stage_empty(problem))
    missing, nearest = min(cuts, key=lambda cut: cut[0])
    if missing <= 0:
        return InfeasibleError(
            f"method {method!r} found no cut that keeps all constraints, and there is one: use "
            "method='auto'"
        )
    return InfeasibleError(_memory_message(problem, missing, nearest, proved))


def _pins_leave_a_stage_empty(problem: Problem) -> str:
    pinned = int((problem.pins >= 0).sum())
    return (
        f"no cut into {problem.n_stages} non-empty stages keeps the {pinned} pinned groups of ops "
        "where they are pinned: some stage is left without ops; pin fewer, or ask for fewer stages"
    )


def _memory_message(problem: Problem, missing: float, nearest: Assignment, proved: bool) -> str:
    scored = evaluate(problem, nearest)
    limit = problem.memory_limit_bytes
    stage = int(np.argmax(scored.memory_bytes - limit))
    term, share = _largest_term(problem, scored, stage)
    proof = _proof(problem, proved)
    return (
        f"the model does not fit in the memory of {problem.n_stages} stages: in the nearest cut "
        f"found, stage {stage} (device position {stage}) needs {_size(scored.memory_bytes[stage])} "
        f"and has {_size(limit[stage])}, {_bytes(scored.memory_bytes[stage] - limit[stage])} too "
        f"little. Its terms: weights {_size(scored.weight_bytes[stage])}, saved activations "
        f"{_size(scored.saved_bytes[stage])} x {problem.in_flight[stage]} in flight, workspace "
        f"{_size(scored.workspace_bytes[stage])}; the largest is {term} ({share:.0%}). "
        f"{proof}The smallest limit found to work: {_bytes(missing)} more on every device"
        f"{_as_one_limit(problem, missing)}. Otherwise {_remedy(term)}"
    )


def _largest_term(problem: Problem, scored: Evaluation, stage: int) -> tuple[str, float]:
    terms = {
        "weights": float(scored.weight_bytes[stage]),
        "saved activations": float(scored.saved_bytes[stage] * problem.in_flight[stage]),
        "workspace": float(scored.workspace_bytes[stage]),
    }
    term = max(terms, key=terms.__getitem__)
    return term, terms[term] / max(sum(terms.values()), 1.0)


def _proof(problem: Problem, proved: bool) -> str:
    """A sentence where simple counting proves that nothing fits, else what was not proved."""
    total, room = float(problem.weight_bytes.sum()), float(problem.memory_limit_bytes.sum())
    if total > room:
        return f"Proved: the weights alone are {_size(total)} and all devices have {_size(room)}. "
    alone = _alone_bytes(problem)
    cluster = int(np.argmax(alone))
    if alone[cluster] > problem.memory_limit_bytes.max():
        return (
            f"Proved: {problem.names[cluster]!r} alone needs {_size(float(alone[cluster]))} and "
            f"the largest device has {_size(float(problem.memory_limit_bytes.max()))}. "
        )
    if proved:
        return "Proved: no assignment fits. "
    return "Not proved impossible: none found in the budget. "


def _alone_bytes(problem: Problem) -> FloatArray:
    """Bytes [n] that a stage with just this cluster needs where the fewest are in flight."""
    alone = problem.workspace_bytes.copy()
    for items, size in (
        (problem.weights, problem.weight_bytes),
        (problem.saved, problem.saved_bytes * problem.in_flight.min()),
    ):
        np.add.at(alone, items.members, np.repeat(size, np.diff(items.offsets)))
    return alone


def _as_one_limit(problem: Problem, missing: float) -> str:
    limits = np.unique(problem.memory_limit_bytes)
    return f" (a limit of {_bytes(limits[0] + missing)})" if len(limits) == 1 else ""


def _remedy(term: str) -> str:
    return {
        "weights": "ask for more stages, a smaller dtype, or an optimizer with less state.",
        "saved activations": "use smaller micro-batches, recomputation, or a schedule with fewer "
        "micro-batches in flight, or ask for more stages.",
        "workspace": "use smaller micro-batches, or split the operation that needs it.",
    }[term]


def _bytes(count: float) -> str:
    return f"{np.ceil(count):.0f} bytes"


def _size(count: float) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count:.0f} B"
