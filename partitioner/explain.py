"""Why the cuts are where they are: what moving each boundary by one cluster would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from stagecut.ir.errors import ArgumentError
from stagecut.ir.problem import IntArray, Problem
from stagecut.ir.solution import Assignment, Evaluation, Solution
from stagecut.partitioner.evaluate import evaluate


@dataclass(frozen=True, slots=True)
class Shift:
    """One cluster moved over one boundary of a stage."""

    cluster: str
    """Its name."""
    source: int
    """The stage it is in."""
    destination: int
    """The stage it would be in."""
    bottleneck_seconds: float
    """The largest stage load after the move."""
    change_seconds: float
    """That less the present one: above 0 is worse."""
    bytes_cut_change: float
    faults: tuple[str, ...]
    """Constraints the move would break."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What limits a stage and what its neighbours would gain or lose."""

    stage: int
    load_seconds: float
    is_bottleneck: bool
    compute_seconds: float
    transfer_seconds: float
    """Sending and receiving."""
    memory_bytes: float
    memory_limit_bytes: float
    shifts: tuple[Shift, ...]
    """Out of the stage and into it, over either boundary, the best first."""


def explain(problem: Problem, solution: Solution, k: int) -> Explanation:
    """What stage `k` is made of, and the best single move over each of its boundaries each way.

    A move is of a cluster that may cross alone: none of its users stays behind, nor any producer.

    Raises:
        ArgumentError: there is no such stage.
    """
    if not 0 <= k < problem.n_stages:
        raise ArgumentError(f"there is no stage {k}; stages are 0..{problem.n_stages - 1}")
    stage, scored = solution.assignment.stage, solution.evaluation
    ways = [(k, k - 1), (k, k + 1), (k - 1, k), (k + 1, k)]
    moves = [
        _best_shift(problem, stage, scored, source, destination)
        for source, destination in ways
        if min(source, destination) >= 0 and max(source, destination) < problem.n_stages
    ]
    shifts = sorted((move for move in moves if move), key=_preference)
    return Explanation(
        stage=k,
        load_seconds=float(scored.load_seconds[k]),
        is_bottleneck=bool(scored.load_seconds[k] == scored.load_seconds.max()),
        compute_seconds=float(scored.forward_seconds[k] + scored.backward_seconds[k]),
        transfer_seconds=float(scored.send_seconds[k] + scored.receive_seconds[k]),
        memory_bytes=float(scored.memory_bytes[k]),
        memory_limit_bytes=float(problem.memory_limit_bytes[k]),
        shifts=tuple(shifts),
    )


def _best_shift(
    problem: Problem, stage: IntArray, now: Evaluation, source: int, destination: int
) -> Shift | None:
    """The least bad move of one cluster from one stage to the next; None if none is legal."""
    shifts = [
        _shift(problem, stage, now, cluster, destination)
        for cluster in _border(problem, stage, source, destination).tolist()
    ]
    return min(shifts, key=_preference, default=None)


def _border(problem: Problem, stage: IntArray, source: int, destination: int) -> IntArray:
    """The clusters of `source` that precedence lets move to the neighbouring stage alone."""
    before, after = problem.edges.T
    inside = (stage[before] == source) & (stage[after] == source)
    held: Literal[0, 1] = 0 if destination > source else 1
    tied = np.zeros(problem.n, dtype=bool)
    tied[problem.edges[inside, held]] = True
    return np.flatnonzero((stage == source) & ~tied)


def _shift(
    problem: Problem, stage: IntArray, now: Evaluation, cluster: int, destination: int
) -> Shift:
    moved = stage.copy()
    moved[cluster] = destination
    scored = evaluate(problem, Assignment(moved))
    return Shift(
        cluster=problem.names[cluster],
        source=int(stage[cluster]),
        destination=destination,
        bottleneck_seconds=scored.bottleneck_seconds,
        change_seconds=scored.bottleneck_seconds - now.bottleneck_seconds,
        bytes_cut_change=scored.bytes_cut - now.bytes_cut,
        faults=scored.faults,
    )


def _preference(shift: Shift) -> tuple[bool, float, float]:
    return bool(shift.faults), shift.change_seconds, shift.bytes_cut_change
