"""Which ops must never be separated, and the clusters that follow.

Tied together are
- everything that reads or writes a buffer, input or value which some op writes in place;
- the calls of one module of the user's own that has buffers, which it may write;
- an op that nobody reads and that writes something, with what it touches;
- a number that depends on data, and a tensor whose size does, with its users (such a size never
  crosses a cut);
- a value that exists only in train or only in eval mode, with its users (it never crosses either);
- a view with its producer or its only user, where no cut between them can be of use;
- what the caller keeps together: the users of a tied weight that is to be held once.

Groups that reach each other both ways form one cluster (strongly connected components).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import networkx as nx

from stagecut.ir.expression import symbols_of
from stagecut.ir.graph import Graph, Mode, Op, reads
from stagecut.ir.types import SymbolicDim, TensorType, Type
from stagecut.passes.resolve import opaque_path
from stagecut.passes.users import Users, alias_classes, names_written, number_values
from stagecut.passes.views import view_pairs


@dataclass(frozen=True, slots=True)
class Clustering:
    """Which ops form each cluster of a problem."""

    cluster_of_op: tuple[int, ...]
    """For each op its cluster; -1 for an op that every stage which needs it runs."""
    ops_of_cluster: tuple[tuple[int, ...], ...]
    """For each cluster its ops, in program order."""


class UnionFind:
    """Disjoint sets of 0..n-1; the smallest member names a set."""

    def __init__(self, n: int) -> None:
        self._parent = list(range(n))

    def find(self, item: int) -> int:
        """The smallest member of the item's set."""
        while self._parent[item] != item:
            self._parent[item] = self._parent[self._parent[item]]
            item = self._parent[item]
        return item

    def join(self, items: Iterable[int]) -> None:
        """Makes one set of all the items' sets."""
        roots = sorted({self.find(item) for item in items})
        for root in roots[1:]:
            self._parent[root] = roots[0]


def cluster_ops(
    graph: Graph,
    users: Users,
    free: frozenset[int],
    pin_of_op: tuple[int, ...],
    together: tuple[frozenset[int], ...] = (),
) -> Clustering:
    """The clusters of a graph, numbered in an order in which each comes after what it needs.

    `free` are the ops that every stage which needs them runs. `pin_of_op` has for each op the stage
    it is pinned to, or -1; views pinned apart stay apart. `together` are ops to be kept in one.
    """
    sets = UnionFind(len(graph.ops))
    one_mode = _one_mode(graph, users, free)
    by_data = _data_sizes(graph, users, free)
    own = _calls_with_buffers(graph)
    for tied in (*_mutation_groups(graph, users), *own, *by_data, *one_mode, *together):
        sets.join(tied - free)
    _tie_dead_effects(graph, users, sets, free)
    for view, other in view_pairs(graph, users, free):
        if pin_of_op[view] == pin_of_op[other]:
            sets.join((view, other))
    edges = dependencies(graph, users, free)
    _close_cycles(sets, edges)
    return _numbered(len(graph.ops), sets, edges, free)


def dependencies(graph: Graph, users: Users, free: frozenset[int]) -> list[tuple[int, int]]:
    """(producer, reader) pairs of ops, and every output's producer before the last one's."""
    edges = [
        (producer, reader)
        for name, producer in users.producer.items() if producer not in free
        for reader in users.readers.get(name, ()) if reader not in free
    ]  # fmt: skip
    last = last_output_op(users, free)
    if last is not None:
        made = (users.producer.get(name) for name in users.outputs)
        edges.extend((p, last) for p in made if p is not None and p not in free and p != last)
    return edges


def last_output_op(users: Users, free: frozenset[int]) -> int | None:
    """The last op in program order that makes an output; None where none is made by a stage."""
    made = (users.producer.get(name) for name in users.outputs)
    return max((p for p in made if p is not None and p not in free), default=None)


def _mutation_groups(graph: Graph, users: Users) -> list[set[int]]:
    classes = alias_classes(graph)
    written = {classes.get(name, name) for name in names_written(graph.ops)}
    groups: dict[str, set[int]] = defaultdict(set)
    for name, root in classes.items():
        if root in written:
            groups[root].update(users.readers.get(name, ()))
            if name in users.producer:
                groups[root].add(users.producer[name])
    return list(groups.values())


def _calls_with_buffers(graph: Graph) -> list[set[int]]:
    buffers = [n for w in graph.weights if w.kind == "buffer" for n in (w.name, *w.aliases)]
    calls: dict[str, set[int]] = defaultdict(set)
    for index, op in enumerate(graph.ops):
        path = opaque_path(op.target)
        if path is not None and any(name.startswith(f"{path}.") for name in buffers):
            calls[path].add(index)
    return list(calls.values())


def _data_sizes(graph: Graph, users: Users, free: frozenset[int]) -> list[set[int]]:
    """Makers and readers of numbers, and of tensors whose size depends on data."""
    sized = [value.name for op in graph.ops for value in op.results if _sized_by_data(value.type)]
    made = ((name, users.producer.get(name)) for name in (*number_values(graph), *sized))
    return [
        {producer, *users.readers.get(name, ())}
        for name, producer in made
        if producer is not None and producer not in free
    ]


def _sized_by_data(kind: Type) -> bool:
    dims = kind.shape if isinstance(kind, TensorType) else ()
    symbols = (s for d in dims if isinstance(d, SymbolicDim) for s in symbols_of(d.expression))
    return any(symbol.startswith("u") for symbol in symbols)


def _one_mode(graph: Graph, users: Users, free: frozenset[int]) -> list[set[int]]:
    """An op that runs only in train or only in eval, with those that read it and one it reads."""
    groups = []
    for index, op in enumerate(graph.ops):
        if index in free or not any(isinstance(c, Mode) for c in op.context):
            continue
        read = {r for value in op.results for r in users.readers.get(value.name, ())}
        made = [users.producer[name] for name in reads(op) if name in users.producer]
        before = [i for i in made if i not in free][-1:]
        alone = not read and not before and not op.effects.mutates
        neighbour = _neighbour(graph, index, free) if alone else None
        groups.append({index, *read, *before, *(() if neighbour is None else (neighbour,))})
    return groups


def _tie_dead_effects(graph: Graph, users: Users, sets: UnionFind, free: frozenset[int]) -> None:
    """An op kept for its effect alone, and alone with what it touches, joins its module."""
    sizes: dict[int, int] = defaultdict(int)
    for index in range(len(graph.ops)):
        sizes[sets.find(index)] += 1
    for index, op in enumerate(graph.ops):
        alone = sizes[sets.find(index)] == 1
        if index not in free and alone and op.effects.mutates and not _read(op, users):
            neighbour = _neighbour(graph, index, free)
            if neighbour is not None:
                sets.join((index, neighbour))


def _read(op: Op, users: Users) -> bool:
    names = {value.name for value in op.results}
    return any(users.readers.get(name) for name in names) or bool(names & set(users.outputs))


def _neighbour(graph: Graph, index: int, free: frozenset[int]) -> int | None:
    """The nearest op of the same module, else the nearest one before, else after."""
    others = [i for i in range(len(graph.ops)) if i != index and i not in free]
    scope = graph.ops[index].scope
    same = [i for i in others if graph.ops[i].scope == scope]
    before = [i for i in others if i < index][-1:]
    return min(same or before or others, key=lambda i: abs(i - index), default=None)


def _close_cycles(sets: UnionFind, edges: list[tuple[int, int]]) -> None:
    quotient = nx.DiGraph()
    quotient.add_edges_from((sets.find(a), sets.find(b)) for a, b in edges)
    for component in nx.strongly_connected_components(quotient):
        sets.join(component)


def _numbered(
    n_ops: int, sets: UnionFind, edges: list[tuple[int, int]], free: frozenset[int]
) -> Clustering:
    members: dict[int, list[int]] = defaultdict(list)
    for index in range(n_ops):
        if index not in free:
            members[sets.find(index)].append(index)
    order = _topological(list(members), {(sets.find(a), sets.find(b)) for a, b in edges})
    number = {root: position for position, root in enumerate(order)}
    of_op = tuple(-1 if i in free else number[sets.find(i)] for i in range(n_ops))
    return Clustering(of_op, tuple(tuple(members[root]) for root in order))


def _topological(nodes: list[int], edges: set[tuple[int, int]]) -> list[int]:
    """Kahn's algorithm; among those ready, the one that comes first in the program."""
    after, waiting = defaultdict(list), dict.fromkeys(nodes, 0)
    for a, b in edges:
        if a != b:
            after[a].append(b)
            waiting[b] += 1
    ready = [node for node, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for b in after[node]:
            waiting[b] -= 1
            if waiting[b] == 0:
                heapq.heappush(ready, b)
    return order
