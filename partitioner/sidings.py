"""Side branches joined to their users or left out, so that what is left to cut is nearly a chain.

Legend:  u a cluster all of whose users are in one group v, w its work, in[s], out[s] what the
values it takes and makes cost at stage s (prices.py).

A bias table, a time embedding's projection, keys and values of an encoder's output may run in any
stage up to their users', which gives a graph 2^branches prefixes. Moving u into the stage of v
takes out[s] from that stage and adds w + in[s]. If u then counts for no more than

    min over s of (out[s] - in[s]), which may be negative, and w

v's stage has no more load than before, and the stages of u and before have none either as long as
in[s] <= w + out[s], with in[s] of what does not leave in any case. Only stages s count that v, and
u, may be in. So the best cut of the joined graph bounds that of the whole graph from below; what is
lost of every u that is joined is w less what it counts for: its remainder.

Most of that comes back. Run in v's stage, u costs the remainder there; run earlier, it costs that
earlier stage w + out[s] - (its inputs' out[s]) which v's stage does not have. The lesser of the two
is u's credit: stages up to any boundary together have no less load than if all credits of the roots
inside were paid, and what was paid ahead is at most the credits of the roots outside.

A small side branch with users in several groups, like a table of angles unsqueezed in each layer,
is left out: those before it precede its users, and its work is a credit of the first of these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagecut.ir.problem import FloatArray, Incidence, IntArray, Problem
from stagecut.partitioner.arrays import BoolArray
from stagecut.partitioner.prices import Windows

_LEFT_OUT = -1


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
    sides = _Sides(problem, windows, work, slowdown, most_loss)
    root = np.unique([r for r in sides.root if r != _LEFT_OUT])
    rank = np.full(problem.n + 1, _LEFT_OUT)  # the last entry is for those left out
    rank[root] = np.arange(len(root))
    group = rank[sides.root]
    sums: dict[tuple[int, ...], list[int]] = {}
    for value in range(len(problem.values)):
        head, *users = group[problem.values[value]].tolist()
        outside = sorted(set(users) - {head, _LEFT_OUT})
        if outside and _LEFT_OUT < head < outside[0]:
            sums.setdefault((head, *outside), []).append(value)
    entering, leaving = (np.zeros((problem.n_stages, len(sums))) for _ in range(2))
    for item, same in enumerate(sums.values()):
        entering[:, item] = windows.paid.entering[:, same].sum(axis=1)
        leaving[:, item] = windows.paid.leaving[:, same].sum(axis=1)
    values = Incidence.of([list(members) for members in sums])
    edges = group[sides.edges()]
    edges = np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0).reshape(-1, 2)
    return Joined(
        root, sides.counted[root], edges, values, entering, leaving, sides.credit[:, root]
    )


class _Sides:
    """What becomes of every cluster, from the last to the first."""

    def __init__(
        self,
        problem: Problem,
        windows: Windows,
        work: FloatArray,
        slowdown: FloatArray,
        most_loss: float,
    ) -> None:
        self.slowdown, self.most_loss = slowdown, most_loss
        self._entering = np.ascontiguousarray(windows.paid.entering.T)
        self._leaving = np.ascontiguousarray(windows.paid.leaving.T)
        self._most_saved = (self._entering / slowdown).max(axis=1).tolist()
        self._low, self._high = windows.low.tolist(), windows.high.tolist()
        self.root = list(range(problem.n))
        self.counted = work.copy()
        self.credit = np.zeros((problem.n_stages + 1, problem.n))
        self._ends = [problem.values[value].tolist() for value in range(len(problem.values))]
        self._taken, self._made = _taken_and_made(self._ends, problem.n)
        self._users: list[set[int]] = [set() for _ in range(problem.n)]
        self._before: list[list[int]] = [[] for _ in range(problem.n)]
        for a, b in problem.edges.tolist():
            self._users[a].add(b)
            self._before[b].append(a)
        for u in np.flatnonzero(~_sharing(problem))[::-1].tolist():
            into = {self.root[b] for b in self._users[u]}
            if len(into) == 1:
                self._join(u, *into)
            elif into:
                self._leave_out(u)

    def edges(self) -> IntArray:
        """Shape [e, 2]: what precedes what, of the clusters that are there."""
        there = (u for u, root in enumerate(self.root) if root != _LEFT_OUT)
        pairs = [(u, b) for u in there for b in self._users[u]]
        return np.asarray(pairs, dtype=np.int64).reshape(-1, 2)

    def _join(self, u: int, v: int) -> None:
        """Moves u into the stage of v, if that loses little enough."""
        made, taken, work = self._used_values(u), self._taken[u], float(self.counted[u])
        if work - sum(self._most_saved[value] for value in made) > self.most_loss:
            return
        if any(self._roots(value) != {v} for value in made):
            return
        first, last = self._low[u], self._high[v]
        before = slice(first, min(self._high[u], last - 1) + 1)
        after = slice(max(self._low[v], first + 1), last + 1)
        ahead = work + _total(self._leaving, made, before) - self._newly_leaving(u, before)
        saved = _total(self._entering, made, after) - _total(self._entering, taken, after)
        counts_for = min(float((saved / self.slowdown[after]).min(initial=np.inf)), work)
        if work - counts_for <= self.most_loss and (ahead >= 0).all():
            self.root[u] = v
            self.counted[v] += counts_for
            self.credit[first + 1 :, v] += min(work - counts_for, float(ahead.min(initial=np.inf)))

    def _newly_leaving(self, u: int, stages: slice) -> FloatArray:
        """Shape [stages]: what u's stage pays for values made there that leave it with u.

        Nothing where another user surely comes later: then they leave in any case.
        """
        total = np.zeros(max(0, stages.stop - stages.start))
        for value in self._taken[u]:
            head, *users = self._ends[value]
            others = [self._low[c] for c in users if c != u and self.root[c] != _LEFT_OUT]
            first = max([stages.start, self._low[head], *others])
            stop = min(stages.stop, self._high[head] + 1)
            if first < stop:
                begin, end = first - stages.start, stop - stages.start
                total[begin:end] += self._leaving[value, first:stop]
        return total

    def _leave_out(self, u: int) -> None:
        """Drops u, if it may run well before its users and costs little enough."""
        users, first = self._users[u], self._low[u]
        costs = _total(self._leaving, self._used_values(u), slice(None))
        loss = max(float(self.counted[u]), float(costs.max(initial=0.0)))
        well_before = first + 1 < min(self._low[b] for b in users)
        if not well_before or loss > self.most_loss:
            return
        self.credit[first + 1 :, self.root[min(users)]] += self.counted[u]
        self.root[u] = _LEFT_OUT
        for a in self._before[u]:
            self._users[a] = self._users[a] - {u} | users

    def _used_values(self, u: int) -> list[int]:
        """The values made by u that somebody who is there uses."""
        return [value for value in self._made[u] if self._roots(value)]

    def _roots(self, value: int) -> set[int]:
        return {self.root[c] for c in self._ends[value][1:]} - {_LEFT_OUT}


def _total(price: FloatArray, values: list[int], stages: slice) -> FloatArray:
    """Shape [stages]: the sum of the prices [v, k] of the values."""
    total = np.zeros(price.shape[1])[stages]
    for value in values:
        total += price[value, stages]
    return total


def _taken_and_made(ends: list[list[int]], n: int) -> tuple[list[list[int]], list[list[int]]]:
    """The values that each cluster takes, and those that it makes."""
    taken: list[list[int]] = [[] for _ in range(n)]
    made: list[list[int]] = [[] for _ in range(n)]
    for value, (head, *users) in enumerate(ends):
        made[head].append(value)
        for user in users:
            taken[user].append(value)
    return taken, made


def _sharing(problem: Problem) -> BoolArray:
    """Shape [n]: who has a weight whose gradient is summed over its users' stages."""
    shared = (problem.weight_sync_seconds > 0) & (np.diff(problem.weights.offsets) > 1)
    has = np.zeros(problem.n, dtype=bool)
    for weight in np.flatnonzero(shared).tolist():
        has[problem.weights[weight]] = True
    return has
