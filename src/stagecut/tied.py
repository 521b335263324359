"""What it costs to keep a tied weight in several stages, and what keeping it in one would.

Users in different stages each hold the weight and its gradient is summed once a step; users in one
stage take along every op that runs between them. The cut weighs both; a plan says what it took.
"""

from __future__ import annotations

import numpy as np

from stagecut.ir.graph import Graph
from stagecut.ir.problem import IntArray, Problem
from stagecut.passes import Clustering, weight_names
from stagecut.report.units import bytes_text, percent_text, seconds_text

_MATTERS = 0.01
"""Share of all weights' memory, or of the bottleneck, from which a tied weight is worth a note."""
_MOST = 3


def tied_notes(
    graph: Graph,
    problem: Problem,
    clustering: Clustering,
    stage: IntArray,
    bottleneck_seconds: float,
    n_microbatches: int,
) -> tuple[str, ...]:
    """A note for each tied weight that matters, the largest first; `stage` has shape [n]."""
    names = weight_names(graph, clustering)
    tied = [
        weight
        for weight in np.argsort(-problem.weight_bytes, kind="stable").tolist()
        if len(problem.weights[weight]) > 1 and _matters(problem, weight, bottleneck_seconds)
    ]
    notes = []
    for weight in tied[:_MOST]:
        holders = np.unique(stage[problem.weights[weight]]).tolist()
        apart = _apart(problem, weight, n_microbatches, max(len(holders), 2))
        if len(holders) == 1:
            taken = f"used in stage {holders[0]} alone. Used in two, it would cost {apart}"
        else:
            together = _together(problem, weight, bottleneck_seconds)
            taken = (
                f"held by stages {', '.join(map(str, holders))}, which costs {apart}. In one "
                f"stage, {together}"
            )
        notes.append(f"{names[weight]} is tied: {taken}.")
    more = len(tied) - _MOST
    return (*notes, f"{more} more weights are tied like these.") if more > 0 else tuple(notes)


def _matters(problem: Problem, weight: int, bottleneck_seconds: float) -> bool:
    held = problem.weight_bytes[weight] >= _MATTERS * problem.weight_bytes.sum()
    return bool(held or problem.weight_sync_seconds[weight] >= _MATTERS * bottleneck_seconds)


def _apart(problem: Problem, weight: int, n_microbatches: int, n_holders: int) -> str:
    """What that many holders cost more than one."""
    more = f"{bytes_text(float(problem.weight_bytes[weight]) * (n_holders - 1))} more memory"
    seconds = float(problem.weight_sync_seconds[weight])
    if not seconds:
        return more
    return (
        f"{more} and a sum of its gradients, {seconds_text(seconds * n_microbatches)} a step "
        f"({seconds_text(seconds)} a micro-batch)"
    )


def _together(problem: Problem, weight: int, bottleneck_seconds: float) -> str:
    """What one holder would have to compute, at least."""
    seconds = (problem.forward_seconds + problem.backward_seconds).min(axis=0)
    taken = float(seconds[_between(problem, problem.weights[weight])].sum())
    share = percent_text(taken / (float(seconds.sum()) or 1.0))
    return (
        f"it would take along what runs between its users, {share} of all work: a load of at least "
        f"{seconds_text(taken)} a micro-batch, where the largest is now "
        f"{seconds_text(bottleneck_seconds)}"
    )


def _between(problem: Problem, users: IntArray) -> IntArray:
    """The clusters on some way from one user to another, the users included."""
    edges = problem.edges[np.argsort(problem.edges[:, 0], kind="stable")]
    later = _reached(users, edges, problem.n)
    edges = problem.edges[np.argsort(-problem.edges[:, 1], kind="stable")]
    earlier = _reached(users, edges[:, ::-1], problem.n)
    return np.asarray(sorted(later & earlier), dtype=np.int64)


def _reached(starts: IntArray, edges: IntArray, n: int) -> set[int]:
    """The clusters reached along `edges`, which come in an order that each way can follow."""
    reached = np.zeros(n, dtype=bool)
    reached[starts] = True
    for source, target in edges.tolist():
        if reached[source]:
            reached[target] = True
    return set(np.flatnonzero(reached).tolist())
