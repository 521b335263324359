"""Why the cuts are where they are: what moving each boundary by one cluster would do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from stagecut.ir.errors import ArgumentError
from stagecut.ir.explanation import Explanation, Shift
from stagecut.ir.problem import FloatArray, IntArray, Problem
from stagecut.ir.solution import Assignment, Evaluation
from stagecut.partitioner.arrays import sums
from stagecut.partitioner.evaluate import evaluate


def explain(
    problem: Problem, assignment: Assignment, k: int, device_of_stage: Sequence[int] | None = None
) -> Explanation:
    """What stage `k` is made of, and the best single move over each of its boundaries each way.

    With `device_of_stage` (shape [k]), the bottleneck is the largest load of a device's stages.

    A move is of a cluster that may cross alone, or with clusters that take no time: none of their
    users stays behind, nor any producer. Where only weightless clusters may cross, one of those.

    Raises:
        ArgumentError: there is no such stage.
    """
    if type(k) is not int or not 0 <= k < problem.n_stages:
        raise ArgumentError(f"there is no stage {k!r}; stages are 0 to {problem.n_stages - 1}")
    stage, scored = assignment.stage, evaluate(problem, assignment)
    device = np.asarray(device_of_stage or range(problem.n_stages))
    ways = [(k - 1, k), (k, k - 1), (k, k + 1), (k + 1, k)]
    moves = [
        _best_shift(problem, stage, scored, source, destination, device)
        for source, destination in ways
        if min(source, destination) >= 0 and max(source, destination) < problem.n_stages
    ]
    load, whole = scored.load_seconds, _of_devices(scored, device)
    compute = float(scored.forward_seconds[k] + scored.backward_seconds[k])
    return Explanation(
        stage=k,
        load_seconds=float(load[k]),
        bottleneck_stage=k if whole[k] == whole.max() else int(whole.argmax()),
        bottleneck_seconds=float(whole.max()),
        compute_seconds=compute,
        transfer_seconds=float(load[k]) - compute,
        shifts=tuple(sorted((move for move in moves if move), key=_preference)),
    )


def _best_shift(
    problem: Problem,
    stage: IntArray,
    now: Evaluation,
    source: int,
    destination: int,
    device: IntArray,
) -> Shift | None:
    """The least bad move of one cluster from one stage to the next; None if none is legal."""
    shifts = [
        _shift(problem, stage, now, clusters, destination, device)
        for clusters in _border(problem, stage, source, destination)
    ]
    return min(shifts, key=_preference, default=None)


def _border(
    problem: Problem, stage: IntArray, source: int, destination: int
) -> list[tuple[int, ...]]:
    """What precedence lets move to the neighbouring stage: a cluster, last, and who comes along."""
    ascending = destination < source
    first, second = (0, 1) if ascending else (1, 0)
    inside = problem.edges[(stage[problem.edges] == source).all(axis=1)]
    held_by: dict[int, list[int]] = defaultdict(list)
    for edge in inside.tolist():
        held_by[edge[second]].append(edge[first])
    seconds = (problem.forward_seconds + problem.backward_seconds).max(axis=0)
    along: dict[int, tuple[int, ...]] = {}
    members = np.flatnonzero(stage == source).tolist()
    for cluster in members if ascending else reversed(members):
        holders = held_by[cluster]
        if all(holder in along and not seconds[holder] for holder in holders):
            taken = {c: None for holder in holders for c in along[holder]}
            along[cluster] = (*taken, cluster)
    heavy = [clusters for cluster, clusters in along.items() if seconds[cluster]]
    return heavy or list(along.values())


def _shift(
    problem: Problem,
    stage: IntArray,
    now: Evaluation,
    clusters: tuple[int, ...],
    destination: int,
    device: IntArray,
) -> Shift:
    moved, source = stage.copy(), int(stage[clusters[-1]])
    moved[list(clusters)] = destination
    scored = evaluate(problem, Assignment(moved))
    bottleneck = float(_of_devices(scored, device).max())
    return Shift(
        clusters=clusters,
        source=source,
        destination=destination,
        source_seconds=float(scored.load_seconds[source]),
        destination_seconds=float(scored.load_seconds[destination]),
        bottleneck_seconds=bottleneck,
        change_seconds=bottleneck - float(_of_devices(now, device).max()),
        bytes_cut_change=scored.bytes_cut - now.bytes_cut,
        faults=scored.faults,
    )


def _of_devices(scored: Evaluation, device: IntArray) -> FloatArray:
    """Shape [k]: for each stage the load of all stages of its device."""
    return sums(device, scored.load_seconds, int(device.max()) + 1)[device]


def _preference(shift: Shift) -> tuple[bool, float, float, float]:
    """Of two moves that break nothing and leave the bottleneck, the one that evens more."""
    larger = max(shift.source_seconds, shift.destination_seconds)
    return bool(shift.faults), shift.change_seconds, larger, shift.bytes_cut_change
