"""What it costs to keep a tied weight in several stages, and what keeping it in one would.

Users in different stages each hold the weight and its gradient is summed once a step; users in one
stage take along every op that runs between them. The cut weighs both, unless the user wants them
in one; a plan says what it took.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from stagecut.ir.errors import InfeasibleError
from stagecut.ir.graph import Graph
from stagecut.ir.problem import IntArray, Problem
from stagecut.passes import Clustering, TiedWeights, tied_users, weight_names
from stagecut.report.units import bytes_text, percent_text, seconds_text

_MATTERS = 0.01
"""Share of all weights' memory, or of the bottleneck, from which a tied weight is worth a note."""
_MOST = 3


@contextmanager
def told_what_is_tied(graph: Graph, wanted: TiedWeights) -> Iterator[None]:
    """Adds to an InfeasibleError that users of tied weights were to be in one stage."""
    try:
        yield
    except InfeasibleError as error:
        names = sorted(tied_users(graph)) if wanted == "colocate" else []
        if not names or "colocate" in str(error):
            raise
        shown = ", ".join(names[:_MOST]) + ", …" * (len(names) > _MOST)
        raise InfeasibleError(
            f'{error}. tied="colocate" keeps the users of {shown} in one stage, with all that runs '
            'between them: tied="replicate" lets them part'
        ) from error


def tied_notes(
    graph: Graph,
    problem: Problem,
    clustering: Clustering,
    stage: IntArray,
    bottleneck_seconds: float,
    n_microbatches: int,
    wanted: TiedWeights = "replicate",
) -> tuple[str, ...]:
    """A note for each tied weight that matters, the largest first; `stage` has shape [n]."""
    names = weight_names(graph, clustering)
    colocated = tied_users(graph) if wanted == "colocate" else {}
    tied = [
        weight
        for weight in np.argsort(-problem.weight_bytes, kind="stable").tolist()
        if (len(problem.weights[weight]) > 1 or names[weight] in colocated)
        and _matters(problem, weight, bottleneck_seconds)
    ]
    notes = []
    for weight in tied[:_MOST]:
        if names[weight] in colocated:
            apart = _apart(problem, weight, n_microbatches, 2)
            taken = f"{_as_asked(problem, weight, stage)} Held by two stages, it would cost {apart}"
            notes.append(f"{names[weight]} is tied: {taken}.")
            continue
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


def _as_asked(problem: Problem, weight: int, stage: IntArray) -> str:
    """Where the users of a co-located weight are, and what that makes of their stage."""
    (group,) = problem.weights[weight].tolist()
    home = int(stage[group])
    seconds = (problem.forward_seconds + problem.backward_seconds)[problem.device_kind[home]]
    total, taken = float(seconds.sum()) or 1.0, float(seconds[group])
    even = total / problem.n_stages
    text = (
        f'all its users are in stage {home}, as tied="colocate" asks, with what runs between them: '
        f"{seconds_text(taken)} a micro-batch, {percent_text(taken / total)} of all work."
    )
    if taken <= even:
        return text
    return (
        f"{text} That alone is more than an even share, {seconds_text(even)}, and no cut makes "
        f'stage {home} smaller: tied="replicate" may.'
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
