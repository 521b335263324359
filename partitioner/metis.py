r"""Seeds from METIS: recursive bisection, made acyclic at every level.

METIS (Karypis and Kumar, SIAM J. Sci. Comput. 1998) knows no directions: plain k-way parts of a
DAG depend on each other in circles and repair ruins them. Here each bisection is turned into "not
before / not after" at once, and weak springs between neighbours of a linear order lean METIS
towards cuts that need little turning. The result orders the clusters for the dynamic programme.

        bisect               project                        recurse
    a--b--c--d         a b | c d       an edge 1 -> 0       [a b] [c d]
     \    |  /          0 1 | 0 1  ->   pulls its end up,
      e--f--g          ...             or its start down
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pymetis

from stagecut.ir.problem import FloatArray, IntArray, Problem
from stagecut.ir.solution import Assignment
from stagecut.partitioner.arrays import BoolArray, sums
from stagecut.partitioner.evaluate import round_trip_seconds
from stagecut.partitioner.orders import stage_windows

_SPRINGS = (1.0, 0.0, 3.0)
_SEEDS = (2, 3)
_SMALLEST = 12
"""METIS misbehaves on graphs of a few nodes; below this the order is split by weight."""
_UNITS = 1_000_000
"""Integer weights sum to about this, so that none overflows; each is at least 1."""


def metis_seeds(problem: Problem, order: IntArray) -> Iterator[tuple[str, Assignment]]:
    """Assignments by recursive bisection, acyclic and with pins kept, balance not guaranteed.

    `order` is a topological order that keeps pinned stages apart (as `orders` gives).
    Complexity: O((n + m) log k) each beside METIS itself.
    """
    for springs in _SPRINGS:
        for seed in _SEEDS:
            bisection = _Bisection.of(problem, order, springs, seed)
            yield f"springs {springs:g}, seed {seed}", bisection.assignment()


@dataclass(frozen=True, slots=True, eq=False)
class _Bisection:
    """A problem renumbered along an order, as the weighted graph that METIS sees."""

    problem: Problem
    order: IntArray
    seconds: FloatArray
    """Shape [n], by position, as are all indices below."""
    edges: IntArray
    """Shape [e, 2]: precedence."""
    wires: IntArray
    """Shape [w, 2]: each value's producer with each consumer."""
    wire_value: IntArray
    """Shape [w]."""
    value_seconds: FloatArray
    """Shape [v]: a round trip between neighbouring stages."""
    low: IntArray
    """Shape [n]: the first stage the pins allow."""
    high: IntArray
    """Shape [n]: the last."""
    springs: float
    seed: int

    @staticmethod
    def of(problem: Problem, order: IntArray, springs: float, seed: int) -> _Bisection:
        position = np.empty(problem.n, dtype=np.int64)
        position[order] = np.arange(problem.n)
        values = problem.values
        fan_out = np.diff(values.offsets) - 1
        wire_value = np.repeat(np.arange(len(values)), fan_out)
        consumer = np.ones(len(values.members), dtype=bool)
        consumer[values.offsets[:-1]] = False
        producer = np.repeat(values.members[values.offsets[:-1]], fan_out)
        wires = np.stack([producer, values.members[consumer]], axis=1)
        last = problem.n_stages - 1
        low, high = stage_windows(problem)
        return _Bisection(
            problem,
            order,
            (problem.forward_seconds + problem.backward_seconds).mean(axis=0)[order],
            position[problem.edges],
            position[wires],
            wire_value,
            round_trip_seconds(problem, 0, min(1, last)),
            low[order],
            high[order],
            springs,
            seed,
        )

    def assignment(self) -> Assignment:
        """Bisects until every part is one stage."""
        stage = np.empty(self.problem.n, dtype=np.int64)
        pending = [(np.arange(self.problem.n), 0, self.problem.n_stages)]
        while pending:
            part, first, k = pending.pop()
            if k == 1:
                stage[self.order[part]] = first
                continue
            upper = self._upper_half(part, first, k)
            pending.append((part[~upper], first, k // 2))
            pending.append((part[upper], first + k // 2, k - k // 2))
        return Assignment(stage)

    def _upper_half(self, part: IntArray, first: int, k: int) -> BoolArray:
        """Which of `part` (ascending positions) go to the last k - k // 2 of its k stages."""
        middle = first + k // 2
        must, must_not = self.low[part] >= middle, self.high[part] < middle
        halves = [self._split_by_weight(part, k)]
        if len(part) >= max(_SMALLEST, 4 * k):
            raw = self._metis_half(part, k)
            edges, _ = _inside(part, self.edges)
            halves = [_up_closed(raw, edges), ~_up_closed(~raw, edges[:, ::-1]), *halves]
        halves = [(half | must) & ~must_not for half in halves]
        costs = [self._cost(part, half, k) for half in halves]
        return halves[int(np.argmin(costs))]

    def _split_by_weight(self, part: IntArray, k: int) -> BoolArray:
        """Splits the order itself: what is left where METIS cannot help."""
        filled = np.cumsum(self.seconds[part])
        split = int(np.searchsorted(filled, filled[-1] * (k // 2) / k)) + 1 if len(part) else 0
        split = min(max(split, k // 2), len(part) - (k - k // 2))
        return np.arange(len(part)) >= split

    def _metis_half(self, part: IntArray, k: int) -> BoolArray:
        """METIS's two parts, the later by mean position as the upper."""
        wires, kept = _inside(part, self.wires)
        value = self.wire_value[kept]
        share = self.value_seconds[value] / np.bincount(value)[value]
        pull = np.median(share) if len(share) else 1.0
        tied = np.arange(len(part) - 1) if self.springs else np.arange(0)
        ends = np.concatenate([wires, np.stack([tied, tied + 1], axis=1)])
        weights = np.concatenate([share, np.full(len(tied), self.springs * (pull or 1.0))])
        adjacency, edge_weights = _graph(ends, weights, len(part))
        _, parts = pymetis.part_graph(
            2,
            adjacency,
            vweights=_integers(self.seconds[part], cap=1 / k),
            eweights=edge_weights,
            tpwgts=[k // 2 / k, 1 - k // 2 / k],
            recursive=True,
            options=pymetis.Options(seed=self.seed, ufactor=30),
        )
        return _later(np.asarray(parts, dtype=bool))

    def _cost(self, part: IntArray, half: BoolArray, k: int) -> float:
        """The larger of the two halves' mean stage load; infinite if a half is too small."""
        sizes = np.asarray([np.count_nonzero(~half), np.count_nonzero(half)])
        stages = np.asarray([k // 2, k - k // 2])
        if (sizes < stages).any() and not self.problem.allow_empty:
            return float("inf")
        wires, kept = _inside(part, self.wires)
        crossing = np.unique(self.wire_value[kept][half[wires[:, 0]] != half[wires[:, 1]]])
        work = sums(half.astype(np.int64), self.seconds[part], 2)
        return float(((work + self.value_seconds[crossing].sum()) / stages).max())


def _later(half: BoolArray) -> BoolArray:
    """`half` or its complement, whichever lies later on average."""
    position = np.arange(len(half))
    if not half.any() or half.all():
        return half
    return half if position[half].mean() >= position[~half].mean() else ~half


def _inside(part: IntArray, pairs: IntArray) -> tuple[IntArray, IntArray]:
    """The pairs with both ends in `part`, renumbered from 0, and their indices."""
    local = np.full(int(max(part.max(initial=-1), pairs.max(initial=-1))) + 1, -1)
    local[part] = np.arange(len(part))
    renumbered = local[pairs]
    kept = np.flatnonzero((renumbered >= 0).all(axis=1))
    return renumbered[kept], kept


def _up_closed(side: BoolArray, edges: IntArray) -> BoolArray:
    """The smallest superset of `side` that contains the end of every edge it starts."""
    closed = side.copy()
    by_source = edges[np.argsort(edges[:, 0], kind="stable")]
    starts = np.searchsorted(by_source[:, 0], np.arange(len(side) + 1))
    ends = by_source[:, 1]
    pulled = np.unique(edges[side[edges[:, 0]] & ~side[edges[:, 1]], 1])
    closed[pulled] = True
    pending = pulled.tolist()
    while pending:
        node = pending.pop()
        reached = ends[starts[node] : starts[node + 1]]
        reached = reached[~closed[reached]]
        closed[reached] = True
        pending += reached.tolist()
    return closed


def _integers(weights: FloatArray, cap: float) -> IntArray:
    """Positive integer weights that sum to about `_UNITS`, none above the share `cap` of it."""
    total = weights.sum()
    share = weights / total if total > 0 else np.full(len(weights), 1 / max(len(weights), 1))
    whole: IntArray = np.rint(_UNITS * np.minimum(share, cap)).astype(np.int64)
    return np.maximum(whole, 1)


def _graph(ends: IntArray, weights: FloatArray, n: int) -> tuple[pymetis.CSRAdjacency, IntArray]:
    """The symmetric adjacency METIS wants, parallel edges summed, with integer weights."""
    ends, weights = ends[ends[:, 0] != ends[:, 1]], weights[ends[:, 0] != ends[:, 1]]
    low, high = ends.min(axis=1), ends.max(axis=1)
    pairs, which = np.unique(low * n + high, return_inverse=True)
    whole = _integers(sums(which, weights, len(pairs)), cap=1.0)
    rows = np.concatenate([pairs // n, pairs % n])
    columns = np.concatenate([pairs % n, pairs // n])
    by_row = np.argsort(rows, kind="stable")
    starts = np.searchsorted(rows[by_row], np.arange(n + 1))
    adjacency = pymetis.CSRAdjacency(starts.astype(np.int64), columns[by_row].astype(np.int64))
    return adjacency, np.concatenate([whole, whole])[by_row]


def kway_parts(problem: Problem, seed: int, recursive: bool) -> IntArray:
    """METIS's own parts of the clusters, one a stage: shape [n]; k-way, or by recursive bisection.

    Balanced by seconds, with few bytes between them; they may need each other in circles, and
    break pins.
    """
    bisection = _Bisection.of(problem, np.arange(problem.n), 0.0, seed)
    wires, value = bisection.wires, bisection.wire_value
    share = bisection.value_seconds[value] / np.bincount(value, minlength=1)[value]
    adjacency, edge_weights = _graph(wires, share, problem.n)
    _, parts = pymetis.part_graph(
        problem.n_stages,
        adjacency,
        vweights=_integers(bisection.seconds, cap=1 / problem.n_stages),
        eweights=edge_weights,
        recursive=recursive,
        options=pymetis.Options(seed=seed, ufactor=30),
    )
    return np.asarray(parts, dtype=np.int64)
