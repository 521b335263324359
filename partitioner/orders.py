"""Linear orders of the clusters: each interval of one is a convex piece of the graph.

A stage of any valid pipeline is an interval of some order (list stage by stage), so a method that
cuts orders optimally needs only a good one. None is best everywhere; they are cheap; try all.

    program        as the model runs                        keeps repeated blocks together
    breadth        by depth from the inputs                 parallel towers side by side
    depth          finish one branch before the next        parallel towers one after another
    least_live     greedily the fewest bytes alive          narrow cuts
    soon, late     by the work before, after                uses close to, far from their sources
    ratio          by the share of work before              between the two
    pins_*         by the stages that the pins leave        as late, as early as pins allow
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from stagecut.ir.errors import InfeasibleError
from stagecut.ir.problem import FloatArray, IntArray, Problem
from stagecut.partitioner.arrays import sums

Lists = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, eq=False)
class Precedence:
    """What must not come after what: the problem's edges, and pinned groups in stage order.

    Between groups pinned to successive stages stands a barrier node without weight, so that m
    pinned clusters cost m edges, not m squared. Nodes are numbered in a topological order.
    """

    cluster: IntArray
    """Shape [nodes]: the cluster of each node, or -1 for a barrier."""
    successors: tuple[tuple[int, ...], ...]
    predecessors: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.cluster)

    def clusters(self, nodes: ArrayLike) -> IntArray:
        """The clusters of `nodes` in their order, barriers dropped."""
        cluster = self.cluster[np.asarray(nodes, dtype=np.int64)]
        return cluster[cluster >= 0]

    def sorted_by(self, key: FloatArray) -> IntArray:
        """The order by a key that never falls along an edge; ties in topological order."""
        return self.clusters(np.argsort(key, kind="stable"))

    def taken_by(self, key: FloatArray) -> IntArray:
        """The order that always takes the ready node of smallest key [nodes]."""
        return self.clusters(_kahn(self.successors, self.predecessors, key.tolist()))

    def per_node(self, of_cluster: FloatArray, barrier: float) -> FloatArray:
        """Spreads a figure of each cluster [n] over the nodes."""
        return np.where(self.cluster >= 0, of_cluster[self.cluster], barrier)


def precedence(problem: Problem) -> Precedence:
    """The precedence graph of a problem with its pins.

    Raises:
        InfeasibleError: the pins contradict the edges.
    """
    n, edges = problem.n, problem.edges
    barriers = _barrier_edges(problem)
    if not len(barriers):
        return _numbered(np.arange(n), edges, n)
    size = max(n, int(barriers.max()) + 1)
    both = np.concatenate([edges, barriers])
    successors, predecessors = _adjacency(both, size)
    order = _kahn(successors, predecessors, range(size))
    if len(order) < size:
        raise InfeasibleError(_pin_conflict(problem))
    position = np.empty(size, dtype=np.int64)
    position[order] = np.arange(size)
    cluster = np.asarray(order)
    cluster = np.where(cluster < n, cluster, -1)
    return _numbered(cluster, position[both], size)


def orders(problem: Problem) -> Iterator[tuple[str, IntArray]]:
    """The named orders, best first, each a permutation of the clusters.

    Cost: O((clusters + edges) log clusters) each.

    Raises:
        InfeasibleError: the pins contradict the edges.
    """
    graph = precedence(problem)
    yield "program", graph.clusters(np.arange(len(graph)))
    mean = (problem.forward_seconds + problem.backward_seconds).mean(axis=0)
    seconds = graph.per_node(mean, barrier=0.0)
    forwards = range(len(graph))
    before = _longest(graph.predecessors, seconds, forwards)
    after = _longest(graph.successors, seconds, reversed(forwards))
    yield "late", graph.sorted_by(-after)
    yield "ratio", graph.taken_by(before / np.maximum(before + after, np.finfo(float).tiny))
    yield "soon", graph.sorted_by(before)
    yield "breadth", graph.sorted_by(_longest(graph.predecessors, np.ones(len(graph)), forwards))
    yield "depth", graph.clusters(_depth_first(graph))
    if (problem.pins >= 0).any():
        first, last = stage_windows(problem)
        yield "pins_late", np.lexsort((np.arange(problem.n), first))
        yield "pins_early", np.lexsort((np.arange(problem.n), last))
    yield "least_live", graph.taken_by(graph.per_node(_live_growth(problem), barrier=0.0))


def stage_windows(problem: Problem) -> tuple[IntArray, IntArray]:
    """Shape [n] each: the first and the last stage that the pins leave to each cluster."""
    pins, last_stage = problem.pins, problem.n_stages - 1
    return narrowed(problem, np.zeros_like(pins), np.full_like(pins, last_stage))


def narrowed(problem: Problem, low: IntArray, high: IntArray) -> tuple[IntArray, IntArray]:
    """Stage windows [n] made consistent with the pins and along the edges."""
    pinned = problem.pins >= 0
    first = np.where(pinned, np.maximum(low, problem.pins), low).tolist()
    last = np.where(pinned, np.minimum(high, problem.pins), high).tolist()
    for a, b in problem.edges[np.argsort(problem.edges[:, 0], kind="stable")].tolist():
        first[b] = max(first[b], first[a])
    for a, b in problem.edges[np.argsort(-problem.edges[:, 1], kind="stable")].tolist():
        last[a] = min(last[a], last[b])
    return np.asarray(first, dtype=np.int64), np.asarray(last, dtype=np.int64)


def topological_order(edges: IntArray, size: int, rank: Sequence[float]) -> list[int]:
    """Nodes 0..size-1 so that edges go forward, of the ready ones always the least by `rank`.

    Shorter than `size` if the edges run in a circle.
    """
    return _kahn(*_adjacency(edges, size), rank)


def _numbered(cluster: IntArray, edges: IntArray, size: int) -> Precedence:
    successors, predecessors = _adjacency(edges, size)
    return Precedence(
        np.asarray(cluster, dtype=np.int64),
        tuple(tuple(s) for s in successors),
        tuple(tuple(p) for p in predecessors),
    )


def _adjacency(edges: IntArray, size: int) -> tuple[list[list[int]], list[list[int]]]:
    successors: list[list[int]] = [[] for _ in range(size)]
    predecessors: list[list[int]] = [[] for _ in range(size)]
    for a, b in np.unique(edges, axis=0).tolist():
        successors[a].append(b)
        predecessors[b].append(a)
    return successors, predecessors


def _barrier_edges(problem: Problem) -> IntArray:
    """Edges group -> barrier -> next group; barriers are numbered from n."""
    stages = np.unique(problem.pins[problem.pins >= 0])
    edges: list[tuple[int, int]] = []
    for i in range(len(stages) - 1):
        barrier = problem.n + i
        edges += [(c, barrier) for c in np.flatnonzero(problem.pins == stages[i]).tolist()]
        edges += [(barrier, c) for c in np.flatnonzero(problem.pins == stages[i + 1]).tolist()]
    return np.asarray(edges, dtype=np.int64).reshape(-1, 2)


def _kahn(successors: Lists, predecessors: Lists, key: Sequence[float]) -> list[int]:
    """A topological order by smallest key among the ready; shorter if the graph has a cycle."""
    missing = [len(p) for p in predecessors]
    ready = [(key[node], node) for node, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for successor in successors[node]:
            missing[successor] -= 1
            if missing[successor] == 0:
                heapq.heappush(ready, (key[successor], successor))
    return order


def _pin_conflict(problem: Problem) -> str:
    """Names two pinned clusters whose order contradicts their pins."""
    latest: list[tuple[int, int]] = [(-1, -1)] * problem.n
    by_source = problem.edges[np.argsort(problem.edges[:, 1], kind="stable")]
    incoming: list[list[int]] = [[] for _ in range(problem.n)]
    for a, b in by_source.tolist():
        incoming[b].append(a)
    for c in range(problem.n):
        latest[c] = max((latest[a] for a in incoming[c]), default=(-1, -1))
        pin = int(problem.pins[c])
        if 0 <= pin < latest[c][0]:
            stage, other = latest[c]
            return (
                f"{problem.names[c]!r} is pinned to stage {pin} and needs "
                f"{problem.names[other]!r}, which is pinned to stage {stage}; pin the first to "
                f"stage {stage} or later, or the second to stage {pin} or earlier"
            )
        if pin >= 0:
            latest[c] = max(latest[c], (pin, c))
    raise AssertionError("a cycle through barriers needs a path between pinned clusters")


def _longest(incoming: Lists, seconds: FloatArray, nodes: Iterable[int]) -> FloatArray:
    """Heaviest path that ends in each node, along `incoming`; `nodes` in a matching order."""
    weight, heaviest = seconds.tolist(), [0.0] * len(seconds)
    for node in nodes:
        heaviest[node] = weight[node] + max((heaviest[p] for p in incoming[node]), default=0.0)
    return np.asarray(heaviest)


def _depth_first(graph: Precedence) -> list[int]:
    """Reverse postorder of a depth-first walk: a branch is finished before the next begins."""
    order: list[int] = []
    missing = [len(p) for p in graph.predecessors]
    stack = [node for node in range(len(graph) - 1, -1, -1) if missing[node] == 0]
    while stack:
        node = stack.pop()
        order.append(node)
        for successor in reversed(graph.successors[node]):
            missing[successor] -= 1
            if missing[successor] == 0:
                stack.append(successor)
    return order


def _live_growth(problem: Problem) -> FloatArray:
    """Bytes [n] by which running a cluster changes what is alive.

    What it makes, less its share of what it uses: a value of c consumers frees 1/c with each.
    """
    offsets, members = problem.values.offsets, problem.values.members
    size = problem.value_forward_bytes + problem.value_backward_bytes
    consumers = np.diff(offsets) - 1
    change = np.repeat(-size / np.maximum(consumers, 1), consumers + 1)
    change[offsets[:-1]] = np.where(consumers > 0, size, 0.0)
    return sums(members, change, problem.n)
