"""The exact problem as an integer programme, with most variables fixed beforehand.

Legend:  c cluster, s stage, y[c, s] = 1 if c is in stages 0..s, x[c, s] = y[c, s] - y[c, s - 1] = 1
if c is in stage s, t[e, s] = 1 if stage s touches item e and does not have all of it.

    minimise T    y[c, s - 1] <= y[c, s]      y[b, s] <= y[a, s] for each edge (a, b)
                  load of s <= T              memory of s <= its limit

Prefix variables make precedence and the lower bound's windows one line each: where c cannot be
after stage s, y[c, s] is the constant 1; where it cannot be in 0..s, the constant 0. T is
kept just below the incumbent's bottleneck: no solution means that the incumbent is optimal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray, Problem
from stagecut.ir.solution import Assignment
from stagecut.partitioner.downsets import stage_alone_decides
from stagecut.partitioner.evaluate import transfer_seconds

Terms = list[tuple[int, float]]
"""A linear expression: (variable, coefficient); variable -1 is the constant."""

UNITS = 100.0
"""The incumbent's bottleneck as a solver sees it; HiGHS's tolerances are absolute, about 1e-6."""
CLOSER = 1 - 1e-6
"""A solution is worth finding only if it is this much better."""
_ABOVE_ALL = 2 * UNITS
"""More than any limit, of time or of memory. Figures above it are as impossible as this one and are
cut to it where they enter, so that all terms and constants made of one stay equal."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a solver says of a programme."""

    values: FloatArray | None = None
    """Of the variables, in the best solution found; None for none."""
    finished: bool = False
    """Whether nothing better than `values` by more than the gap asked for is left."""
    none_exists: bool = False
    """Whether there is proved to be no solution."""
    refuted: float = 0.0
    """A T in the programme's units that nothing is below."""


class Program:
    """Rows and columns as they are added; column 0 is T, an amount."""

    def __init__(self, problem: Problem, low: IntArray, high: IntArray, upper: float) -> None:
        self.problem, self.unit = problem, upper / UNITS
        self.low, self.high = low.tolist(), high.tolist()
        self.whole = [0]
        self.most = [UNITS * CLOSER]
        self.amount = [True]
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.coefficients: list[float] = []
        self.limits: list[float] = []
        self._y: dict[tuple[int, int], int] = {}
        k = problem.n_stages
        self.load: list[Terms] = [[] for _ in range(k)]
        self.memory: list[Terms] = [[] for _ in range(k)]

    def build(self, seconds_left: Callable[[], float]) -> bool:
        """Adds everything but the solver; whether time sufficed."""
        self._stages()
        self._computation()
        parts = [self._transfers(), self._synchronisation()]
        if np.isfinite(self.problem.memory_limit_bytes).any():
            parts.append(self._memory())
        for _ in chain.from_iterable(parts):
            if not seconds_left():
                return False
        for load in self.load:
            self.at_most([*load, (0, -1.0)], 0.0)
        return True

    @property
    def size(self) -> int:
        """How many coefficients are not zero."""
        return len(self.coefficients)

    def assignment(self, values: FloatArray) -> Assignment:
        """The stages of a solution."""
        return Assignment(
            np.asarray(
                [
                    low + sum(values[self._y[c, s]] < 0.5 for s in range(low, high))
                    for c, (low, high) in enumerate(zip(self.low, self.high, strict=True))
                ],
                dtype=np.int64,
            )
        )

    def at_most(self, terms: Terms, limit: float) -> None:
        """Adds the row: terms <= limit. Rows of constants alone are kept as infeasibility."""
        sums: dict[int, float] = {}
        for variable, coefficient in terms:
            sums[variable] = sums.get(variable, 0.0) + coefficient
        limit -= sums.pop(-1, 0.0)
        row = [(v, c) for v, c in sums.items() if c]
        if not row and limit >= -1e-9:
            return
        for variable, coefficient in row or [(0, 0.0)]:
            self.rows.append(len(self.limits))
            self.columns.append(variable)
            self.coefficients.append(coefficient)
        self.limits.append(limit)

    def variable(self, whole: bool = False) -> int:
        """A new column from 0 to 1: 0 or 1 in the best solution, whether it has to be or not."""
        return self._column(whole, 1.0, amount=False)

    def amount_of(self, most: float) -> int:
        """A new column for an amount from 0 to `most`."""
        return self._column(False, most, amount=True)

    def _column(self, whole: bool, most: float, amount: bool) -> int:
        self.whole.append(int(whole))
        self.most.append(most)
        self.amount.append(amount)
        return len(self.most) - 1

    def y(self, cluster: int, stage: int) -> Terms:
        """Whether the cluster is in stages 0..stage."""
        if stage >= self.high[cluster]:
            return [(-1, 1.0)]
        return [] if stage < self.low[cluster] else [(self._y[cluster, stage], 1.0)]

    def x(self, cluster: int, stage: int, factor: float = 1.0) -> Terms:
        """Whether the cluster is in the stage, times `factor`."""
        now = [(v, factor * c) for v, c in self.y(cluster, stage)]
        return now + [(v, -factor * c) for v, c in self.y(cluster, stage - 1)]

    def stages_of(self, clusters: Iterable[int]) -> list[int]:
        """The stages that some of the clusters may be in."""
        return sorted({s for c in clusters for s in range(self.low[c], self.high[c] + 1)})

    def together(self, clusters: list[int]) -> bool:
        """Whether all clusters are surely in one stage."""
        return len(self.stages_of(clusters)) == 1

    def _stages(self) -> None:
        p = self.problem
        for c in range(p.n):
            for s in range(self.low[c], self.high[c]):
                self._y[c, s] = self.variable(whole=True)
        for c in range(p.n):
            for s in range(self.low[c], self.high[c] - 1):
                self.at_most([*self.y(c, s), *_minus(self.y(c, s + 1))], 0.0)
        for a, b in np.unique(p.edges, axis=0).tolist():
            for s in range(self.low[b], self.high[a]):
                self.at_most([*self.y(b, s), *_minus(self.y(a, s))], 0.0)
        for s in range(p.n_stages if not p.allow_empty else 0):
            self.at_most([term for c in range(p.n) for term in self.x(c, s, -1.0)], -1.0)

    def _computation(self) -> None:
        p = self.problem
        seconds = ((p.forward_seconds + p.backward_seconds) / self.unit)[p.device_kind]
        for c in range(p.n):
            for s in self.stages_of([c]):
                self.load[s] += self.x(c, s, _cut(seconds[s, c]))

    def _transfers(self) -> Iterator[None]:
        p = self.problem
        alone = stage_alone_decides(p)
        for v in range(len(p.values)):
            yield
            members = p.values[v].tolist()
            if len(members) == 1 or self.together(members):
                continue
            if alone[v]:
                seconds = sum(map(sum, transfer_seconds(p, *np.asarray([[v], [0], [1]]))))
                self._partly(members, _cut(seconds / self.unit))
            else:
                self._pairwise(v, members)

    def _synchronisation(self) -> Iterator[None]:
        p = self.problem
        for w in np.flatnonzero(p.weight_sync_seconds > 0).tolist():
            yield
            users = p.weights[w].tolist()
            if users and not self.together(users):
                self._partly(users, _cut(p.weight_sync_seconds[w] / self.unit))

    def _partly(self, members: list[int], seconds: float) -> None:
        """Each stage that has some members and not all pays `seconds`."""
        head, *others = members
        for s in self.stages_of(members):
            paid = self.variable()
            for other in others:
                self.at_most([*self.x(head, s), *self.x(other, s, -1.0), (paid, -1.0)], 0.0)
                self.at_most([*self.x(other, s), *self.x(head, s, -1.0), (paid, -1.0)], 0.0)
            self.load[s].append((paid, seconds))

    def _pairwise(self, value: int, members: list[int]) -> None:
        """Each pair of producer's and consumer's stage pays by its own link and the send rule."""
        head, *others = members
        for p in self.stages_of([head]):
            sent: list[Terms] = [[], []]
            for q in self.stages_of(others):
                if p == q:
                    continue
                there, back = (
                    _cut(seconds[0] / self.unit)
                    for seconds in transfer_seconds(self.problem, *np.asarray([[value], [p], [q]]))
                )
                pair = self.variable()
                for other in (c for c in others if self.low[c] <= q <= self.high[c]):
                    self.at_most([*self.x(head, p), *self.x(other, q), (pair, -1.0)], 1.0)
                self.load[q].append((pair, there + back))
                sent[0].append((pair, there))
                sent[1].append((pair, back))
            self._send(p, sent)

    def _send(self, stage: int, sent: list[Terms]) -> None:
        """Charges the producer's stage: all of each list, or under "once" its dearest entry."""
        for terms in sent:
            if self.problem.send_rule == "per_consumer":
                self.load[stage] += terms
            elif terms:
                dearest = self.amount_of(max(seconds for _, seconds in terms))
                for pair, seconds in terms:
                    self.at_most([(pair, seconds), (dearest, -1.0)], 0.0)
                self.load[stage].append((dearest, 1.0))

    def _memory(self) -> Iterator[None]:
        p, k = self.problem, self.problem.n_stages
        unit = float(p.memory_limit_bytes[np.isfinite(p.memory_limit_bytes)].max()) or 1.0
        for w in range(len(p.weights)):
            yield
            self._held(p.weights[w].tolist(), np.full(k, p.weight_bytes[w] / unit))
        for i in range(len(p.saved)):
            yield
            self._held(p.saved[i].tolist(), p.saved_bytes[i] / unit * p.in_flight)
        for s in range(k):
            limit = float(p.memory_limit_bytes[s])
            if np.isfinite(limit):
                self._workspace(s, unit)
                self.at_most(self.memory[s], limit / unit)

    def _held(self, users: list[int], size: FloatArray) -> None:
        """A stage holds an item once if it has any of its users."""
        for s in self.stages_of(users) if size.any() else ():
            if len(users) == 1:
                self.memory[s] += self.x(users[0], s, _cut(size[s]))
                continue
            held = self.variable()
            for user in users:
                self.at_most([*self.x(user, s), (held, -1.0)], 0.0)
            self.memory[s].append((held, _cut(size[s])))

    def _workspace(self, stage: int, unit: float) -> None:
        needed = np.minimum(self.problem.workspace_bytes / unit, _ABOVE_ALL)
        if not needed.any():
            return
        largest = self.amount_of(float(needed.max()))
        for c in np.flatnonzero(needed).tolist():
            self.at_most([*self.x(c, stage, float(needed[c])), (largest, -1.0)], 0.0)
        self.memory[stage].append((largest, 1.0))


def _cut(figure: float) -> float:
    return min(float(figure), _ABOVE_ALL)


def _minus(terms: Terms) -> Terms:
    return [(variable, -coefficient) for variable, coefficient in terms]
