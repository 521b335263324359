"""Which device takes which position in the pipeline, where devices differ.

Devices of one kind with the same memory and links are interchangeable, so only the distinct
arrangements are tried: all for up to eight devices (the first 120 that differ), else the given
order, its reverse and every swap of two.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, permutations

import numpy as np

from stagecut.ir.problem import IntArray, Problem
from stagecut.ir.solution import Solution
from stagecut.partitioner.dp import cut_order
from stagecut.partitioner.evaluate import evaluate, score
from stagecut.partitioner.orders import orders
from stagecut.partitioner.solve import solve

_ALL = 8
_MOST_ARRANGEMENTS = 120


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """A solution and the devices it is for."""

    solution: Solution
    problem: Problem
    """The problem with its devices in the chosen order: what the solution is a solution of."""
    device_of_stage: IntArray
    """Shape [k]: the device, as numbered in the problem asked about, at each stage position."""


def solve_placed(problem: Problem, method: str = "auto", time_limit: float = 10.0) -> Placement:
    """Solves `problem` for the best order of its devices.

    device_kind, memory_limit_bytes and both link matrices move with the devices; in_flight and pins
    stay with the positions. Arrangements are compared by the best cut of program order, the best of
    them is then solved by `method`. The lower bound holds for that arrangement.

    Raises:
        InfeasibleError: nothing was found that fits, in the best arrangement.
    """
    deadline = time.monotonic() + time_limit / 2
    order = np.arange(problem.n_stages)
    best, best_score = order, _quick_score(problem)
    for candidate in _arrangements(problem):
        reached = _quick_score(arranged(problem, candidate))
        if reached < best_score:
            best, best_score = candidate, reached
        if time.monotonic() > deadline:
            break
    chosen = arranged(problem, best)
    return Placement(solve(chosen, method, time_limit), chosen, best)


def arranged(problem: Problem, device_of_stage: IntArray) -> Problem:
    """`problem` with device device_of_stage[s] at position s."""
    both = np.ix_(device_of_stage, device_of_stage)
    return replace(
        problem,
        device_kind=problem.device_kind[device_of_stage],
        memory_limit_bytes=problem.memory_limit_bytes[device_of_stage],
        link_latency_seconds=problem.link_latency_seconds[both],
        link_seconds_per_byte=problem.link_seconds_per_byte[both],
    )


def _quick_score(problem: Problem) -> tuple[bool, float, float, float]:
    _, program = next(orders(problem))
    cut = cut_order(problem, program)
    if cut is None:
        return True, np.inf, np.inf, np.inf
    return score(evaluate(problem, cut))


def _arrangements(problem: Problem) -> Iterator[IntArray]:
    """Orders of the devices, one for each that differs in what stands where."""
    k = problem.n_stages
    tried: set[bytes] = set()
    for candidate in permutations(range(k)) if k <= _ALL else _swapped(k):
        order = np.asarray(candidate, dtype=np.int64)
        seen = arranged(problem, order)
        key = b"".join(
            array.tobytes()
            for array in (
                seen.device_kind,
                seen.memory_limit_bytes,
                seen.link_latency_seconds,
                seen.link_seconds_per_byte,
            )
        )
        if key not in tried:
            tried.add(key)
            yield order
        if len(tried) >= _MOST_ARRANGEMENTS:
            return


def _swapped(k: int) -> Iterator[tuple[int, ...]]:
    """The given order reversed, and with each pair swapped."""
    yield tuple(reversed(range(k)))
    for a, b in combinations(range(k), 2):
        order = list(range(k))
        order[a], order[b] = b, a
        yield tuple(order)
