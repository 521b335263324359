"""Side branches joined to their users, so that what is left to cut is nearly a chain.

Legend:  u a cluster all of whose users are in one group v, w its work, in[s], out[s] what the
values it takes and makes cost at stage s (prices.py).

A bias table, a time embedding's projection, keys and values of an encoder's output may run in any
stage up to their users', which gives a graph 2^branches prefixes. Moving u into the stage of v
takes out[s] from that stage and adds w + in[s]. If u then counts for no more than

    min over s of (out[s] - in[s]), which may be negative, and w

v's stage has no more load than before, and the stages of u and before have none either as long as
in[s] <= w + out[s]. Only stages s count that v, and u, may be in. So the best cut of the joined
graph bounds that of the whole graph from below; what is lost of every u that is joined is w less
what it counts for: its remainder.

Most of that comes back. Run in v's stage, u costs the remainder there; run earlier, it costs that
earlier stage w + out[s] - (its inputs' out[s]) which v's stage does not have. The lesser of the two
is u's credit: stages up to any boundary together have no less load than if all credits of the roots
inside were paid, and what was paid ahead is at most the credits of the roots outside.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagecut.ir.problem import FloatArray, Incidence, IntArray, Problem
from stagecut.partitioner.arrays import BoolArray
from stagecut.partitioner.prices import Windows


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """A graph of groups, numbered in topological order by their last clusters."""

    root: IntArray
    """Shape [m]: each group's last cluster, which decides its stage."""
    work: FloatArray
    """Shape [m]."""
    edges: IntArray
    """Shape [e, 2]."""
    values: Incidence
    """What may cross: the maker's group, then the users'."""
    entering: FloatArray
    """Shape [k, values]."""
    leaving: FloatArray
    credit: FloatArray
    """Shape [k + 1, m]: of what each root's side branches cost beyond what they count for, what may
    be paid before the boundary; the last row is all of it."""


def joined(
    problem: Problem, windows: Windows, work: FloatArray, slowdown: FloatArray, most_loss: float
) -> Joined:
    """`problem` with every side branch joined that loses no more than `most_loss`.

    `work` [n], prices and `most_loss` are in the same unit; a stage at position s does
    slowdown[s] * work at least.
    """
    paid = windows.paid
    group, counted, credit = _groups(problem, windows, work, slowdown, most_loss)
    root, rank = np.unique(group, return_inverse=True)
    edges = rank[problem.edges]
    edges = np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0).reshape(-1, 2)
    sums: dict[tuple[int, ...], list[int]] = {}
    for value in range(len(problem.values)):
        head, *users = rank[problem.values[value]].tolist()
        outside = sorted(set(users) - {head})
        if outside and outside[0] > head:
            sums.setdefault((head, *outside), []).append(value)
    entering, leaving = (
        np.zeros((problem.n_stages, len(sums))) for _ in (paid.entering, paid.leaving)
    )
    for item, same in enumerate(sums.values()):
        entering[:, item] = paid.entering[:, same].sum(axis=1)
        leaving[:, item] = paid.leaving[:, same].sum(axis=1)
    values = Incidence.of([list(members) for members in sums])
    return Joined(root, counted[root], edges, values, entering, leaving, credit[:, root])


def _groups(
    problem: Problem, windows: Windows, work: FloatArray, slowdown: FloatArray, most_loss: float
) -> tuple[IntArray, FloatArray, FloatArray]:
    """The root [n] of each cluster's group, the work [n] and the credit [k + 1, n] of each root."""
    taken, made = _ends(problem)
    users: list[set[int]] = [set() for _ in range(problem.n)]
    for a, b in problem.edges.tolist():
        users[a].add(b)
    root, counted = list(range(problem.n)), work.copy()
    credit = np.zeros((problem.n_stages + 1, problem.n))
    for u in np.flatnonzero(~_sharing(problem))[::-1].tolist():
        into = {root[b] for b in users[u]}
        if len(into) != 1 or not _all_in(problem, made[u], root, into):
            continue
        (v,) = into
        first, last = int(windows.low[u]), int(windows.high[v])
        before = slice(first, min(int(windows.high[u]), last - 1) + 1)
        after = slice(max(int(windows.low[v]), first + 1), last + 1)
        leaving, entering = windows.paid.leaving[before], windows.paid.entering[after]
        ahead = counted[u] + _total(leaving, made[u]) - _total(leaving, taken[u])
        if (ahead < 0).any():
            continue
        saved = (_total(entering, made[u]) - _total(entering, taken[u])) / slowdown[after]
        counts_for = min(float(saved.min(initial=np.inf)), float(counted[u]))
        if counted[u] - counts_for <= most_loss:
            root[u] = v
            remainder = float(counted[u]) - counts_for
            counted[v] += counts_for
            credit[first + 1 :, v] += min(remainder, float(ahead.min(initial=np.inf)))
    return np.asarray(root), counted, credit


def _total(price: FloatArray, values: list[int]) -> FloatArray:
    """Shape [stages]: the sum of the prices of the values."""
    total: FloatArray = price[:, values].sum(axis=1)
    return total


def _ends(problem: Problem) -> tuple[list[list[int]], list[list[int]]]:
    """The values that each cluster takes, and those that it makes."""
    taken: list[list[int]] = [[] for _ in range(problem.n)]
    made: list[list[int]] = [[] for _ in range(problem.n)]
    for value in range(len(problem.values)):
        head, *users = problem.values[value].tolist()
        made[head].append(value)
        for user in users:
            taken[user].append(value)
    return taken, made


def _all_in(problem: Problem, values: list[int], root: list[int], group: set[int]) -> bool:
    """Whether all users of the values are in the group."""
    return all({root[c] for c in problem.values[v].tolist()[1:]} <= group for v in values)


def _sharing(problem: Problem) -> BoolArray:
    """Shape [n]: who has a weight whose gradient is summed over its users' stages."""
    shared = (problem.weight_sync_seconds > 0) & (np.diff(problem.weights.offsets) > 1)
    has = np.zeros(problem.n, dtype=bool)
    for weight in np.flatnonzero(shared).tolist():
        has[problem.weights[weight]] = True
    return has
