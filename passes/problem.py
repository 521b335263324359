"""From an annotated graph to the arrays that a partitioner works on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stagecut.ir.device import Cluster, Link
from stagecut.ir.errors import ArgumentError, InfeasibleError
from stagecut.ir.graph import Graph, Op, Value, op_refs
from stagecut.ir.problem import FloatArray, Incidence, IntArray, Problem
from stagecut.ir.types import TensorType
from stagecut.passes.groups import (
    Clustering,
    cluster_ops,
    dependencies,
    last_output_op,
)
from stagecut.passes.held import trained
from stagecut.passes.pins import pins_of_clusters, pins_of_ops
from stagecut.passes.propagate import owned_weights
from stagecut.passes.regions import replayed_ops
from stagecut.passes.replay import replay_peaks
from stagecut.passes.replicated import replicated_ops
from stagecut.passes.saved import saved_storages
from stagecut.passes.states import weight_bytes
from stagecut.passes.ties import TiedWeights, check_pins_of_tied, tied_users
from stagecut.passes.users import Users


def build_problem(
    graph: Graph,
    *,
    cluster: Cluster,
    n_stages: int,
    n_microbatches: int,
    in_flight: Sequence[int],
    memory_limit: float | Sequence[float] | None,
    optimizer: str,
    training: bool,
    pins: Mapping[str, int],
    costed: Mapping[str, Graph] | None = None,
    device_of_stage: Sequence[int] | None = None,
    tied: TiedWeights = "replicate",
) -> tuple[Problem, Clustering]:
    """The partitioning problem of a graph, and which ops its clusters stand for.

    The graph is annotated for the cluster's first device; `costed` has it annotated for each
    other kind of device in the cluster, by its name. Without `device_of_stage` (shape [n_stages]),
    stage s runs on device s, or s modulo the devices where there are fewer. `in_flight` (shape
    [n_stages]) says how many micro-batches' saved tensors each stage holds. `memory_limit` is in
    bytes, for every stage or one each; None means what tensors can have of each device's. `pins`
    are module paths to stages. `tied="colocate"` keeps all users of a parameter in one stage.

    Raises:
        ArgumentError: an argument does not fit; InfeasibleError: pins contradict each other.
    """
    _check(graph, cluster, n_stages, in_flight, memory_limit, costed or {})
    users, free = Users.of(graph), replicated_ops(graph)
    pin_of_op = _pinned_to_the_end(graph, users, free, pins, n_stages)
    together = tied_users(graph) if tied == "colocate" else {}
    check_pins_of_tied(graph, together, pin_of_op)
    clustering = cluster_ops(graph, users, free, pin_of_op, tuple(together.values()))
    builder = _Builder(graph, clustering, users, free, training)
    ranks = list(device_of_stage or (s % len(cluster.devices) for s in range(n_stages)))
    kinds = list(dict.fromkeys(cluster.devices[rank].name for rank in ranks))
    graphs = [{cluster.devices[0].name: graph, **(costed or {})}[kind] for kind in kinds]
    values, weights = builder.values(), builder.weights(optimizer)
    latency, per_byte = _links(cluster, ranks)
    links = {cluster.link(a, b) for a in ranks for b in ranks if a != b}
    saved = [storage for storage in builder.saved() if storage[0]]
    problem = Problem(
        n_stages=n_stages,
        names=tuple(graph.ops[ops[0]].name for ops in clustering.ops_of_cluster),
        forward_seconds=builder.seconds(graphs, _forward_seconds),
        backward_seconds=builder.backward_seconds(graphs),
        edges=builder.edges(),
        values=Incidence.of([members for _, members in values]),
        value_forward_bytes=_floats([_bytes(value) for value, _ in values]),
        value_backward_bytes=_floats([_gradient_bytes(v, training) for v, _ in values]),
        weights=Incidence.of([members for _, members, _, _ in weights]),
        weight_bytes=_floats([held for _, _, held, _ in weights]),
        weight_sync_seconds=_floats(
            [
                gradient and _sync_seconds(gradient, links, n_microbatches)
                for *_, gradient in weights
            ]
        ),
        saved=Incidence.of([members for members, _ in saved]),
        saved_bytes=_floats([n_bytes for _, n_bytes in saved]),
        workspace_bytes=builder.workspace(),
        pins=_integers(pins_of_clusters(graph, clustering, pin_of_op)),
        device_kind=_integers([kinds.index(cluster.devices[rank].name) for rank in ranks]),
        memory_limit_bytes=_limits(memory_limit, cluster, ranks),
        in_flight=_integers(in_flight),
        link_latency_seconds=latency,
        link_seconds_per_byte=per_byte,
        scopes=tuple(builder.scope(ops) for ops in clustering.ops_of_cluster),
    )
    return problem, clustering


def weight_names(graph: Graph, clustering: Clustering) -> tuple[str, ...]:
    """The names of a problem's weights, in its order."""
    builder = _Builder(graph, clustering, Users.of(graph), replicated_ops(graph), graph.training)
    return tuple(name for name, *_ in builder.weights("none"))


def stages_of_ops(
    graph: Graph, clustering: Clustering, stage: IntArray
) -> tuple[tuple[int, ...], ...]:
    """For each op the stages that run it, given the stage of each cluster.

    A replicated op runs on every stage that reads what it makes, outputs being read on the last.
    """
    users = Users.of(graph)
    last = int(stage.max()) if len(stage) else 0
    found: list[set[int]] = [
        set() if cluster < 0 else {int(stage[cluster])} for cluster in clustering.cluster_of_op
    ]
    for index in reversed(range(len(graph.ops))):
        if clustering.cluster_of_op[index] >= 0:
            continue
        for value in graph.ops[index].results:
            for reader in users.readers.get(value.name, ()):
                found[index] |= found[reader]
            if value.name in users.outputs:
                found[index].add(last)
    return tuple(tuple(sorted(stages)) for stages in found)


@dataclass(frozen=True, slots=True)
class _Builder:
    graph: Graph
    clustering: Clustering
    users: Users
    free: frozenset[int]
    training: bool

    def of(self, ops: Sequence[int]) -> list[int]:
        """The clusters of some ops, each once, in order."""
        clusters = self.clustering.cluster_of_op
        return list(dict.fromkeys(clusters[op] for op in ops if clusters[op] >= 0))

    def edges(self) -> IntArray:
        pairs = {
            (self.clustering.cluster_of_op[a], self.clustering.cluster_of_op[b])
            for a, b in dependencies(self.graph, self.users, self.free)
        }
        forward = sorted(pair for pair in pairs if pair[0] != pair[1])
        return np.asarray(forward, dtype=np.int64).reshape(-1, 2)

    def values(self) -> list[tuple[Value, list[int]]]:
        """The values that may cross, with their producer and their other readers' clusters."""
        last = last_output_op(self.users, self.free)
        found = []
        for index, op in enumerate(self.graph.ops):
            for value in op.results if index not in self.free else ():
                readers = list(self.users.readers.get(value.name, ()))
                if value.name in self.users.outputs and last is not None:
                    readers.append(last)
                members = self.of([index, *readers])
                if len(members) > 1 and isinstance(value.type, TensorType):
                    found.append((value, members))
        return found

    def weights(self, optimizer: str) -> list[tuple[str, list[int], int, int]]:
        """(name, users, bytes held, bytes of the gradient) of each weight that is used."""
        readers: dict[str, list[int]] = {w.name: [] for w in self.graph.weights}
        for index, op in enumerate(self.graph.ops):
            names = {ref.name for ref in op_refs(op)}
            names.update(w.name for _, w in owned_weights(op, self.graph.weights))
            for name in names & readers.keys():
                readers[name].append(index)
        found = []
        for weight in trained(self.graph):
            held = weight_bytes(weight, optimizer, self.training)
            members = self.of(readers[weight.name])
            if members:
                found.append((weight.name, members, sum(held), held[1]))
        return found

    def saved(self) -> list[tuple[list[int], int]]:
        if not self.training:
            return []
        return [(self.of(s.ops), s.n_bytes) for s in saved_storages(self.graph)]

    def backward_seconds(self, graphs: Sequence[Graph]) -> FloatArray:
        """Of each cluster on each kind of device, recomputed forwards included."""
        again = {graph.ops[i].name for graph in graphs[:1] for i in replayed_ops(graph)}
        return self.seconds(
            graphs,
            lambda op: _backward_seconds(op) + (_forward_seconds(op) if op.name in again else 0.0),
        )

    def seconds(self, graphs: Sequence[Graph], of: Callable[[Op], float]) -> FloatArray:
        rows = [
            [sum(of(graph.ops[op]) for op in ops) for ops in self.clustering.ops_of_cluster]
            for graph in graphs
        ]
        return np.asarray(rows, dtype=np.float64).reshape(len(graphs), -1)

    def workspace(self) -> FloatArray:
        """What a cluster takes while it runs, and its recomputed region's tensors with it."""
        clusters = self.clustering.ops_of_cluster
        again = replay_peaks(self.graph) if self.training else {}
        return _floats(
            [max(self._transient(op) + again.get(op, 0) for op in ops) for ops in clusters]
        )

    def _transient(self, op: int) -> float:
        """An op's temporaries, and the gradients of its results while they are alive."""
        found = self.graph.ops[op]
        gradients = sum(_gradient_bytes(value, self.training) for value in found.results)
        return gradients + (found.cost.workspace_bytes if found.cost else 0)

    def scope(self, ops: Sequence[int]) -> str:
        """The module of the cluster's longest op."""
        return max((self.graph.ops[op] for op in ops), key=_forward_seconds).scope


def _forward_seconds(op: Op) -> float:
    return op.cost.forward.seconds if op.cost else 0.0


def _backward_seconds(op: Op) -> float:
    return op.cost.backward.seconds if op.cost else 0.0


def _pinned_to_the_end(
    graph: Graph, users: Users, free: frozenset[int], pins: Mapping[str, int], n_stages: int
) -> tuple[int, ...]:
    """The user's pins, and the last output with what follows it on the last stage."""
    pinned = list(pins_of_ops(graph, pins, n_stages))
    last = last_output_op(users, free)
    for index in range(last if last is not None else len(pinned), len(pinned)):
        if index in free:
            continue
        if pinned[index] not in (-1, n_stages - 1):
            raise InfeasibleError(
                f"{graph.ops[index].scope or graph.ops[index].name} makes the model's output and "
                f"is pinned to stage {pinned[index]}; outputs leave from the last stage, "
                f"{n_stages - 1}"
            )
        pinned[index] = n_stages - 1
    return tuple(pinned)


def _bytes(value: Value) -> float:
    return float(value.type.hint_bytes) if isinstance(value.type, TensorType) else 0.0


def _gradient_bytes(value: Value, training: bool) -> float:
    return _bytes(value) if training and value.requires_grad else 0.0


def _sync_seconds(n_bytes: float, links: Iterable[Link], n_microbatches: int) -> float:
    """A step's sum of one gradient over the dearest link, spread over its micro-batches.

    Two holders each send what they have and receive the other's.
    """
    return max((2 * link.seconds(n_bytes) for link in links), default=0.0) / n_microbatches


def _links(cluster: Cluster, ranks: Sequence[int]) -> tuple[FloatArray, FloatArray]:
    k = len(ranks)
    latency, per_byte = np.zeros((k, k)), np.zeros((k, k))
    for p, a in enumerate(ranks):
        for q, b in enumerate(ranks):
            if a != b:
                link = cluster.link(a, b)
                latency[p, q] = link.latency_seconds
                per_byte[p, q] = 1 / link.bytes_per_second
    return latency, per_byte


def _limits(
    given: float | Sequence[float] | None, cluster: Cluster, ranks: Sequence[int]
) -> FloatArray:
    if given is None:
        return _floats([cluster.devices[rank].usable_bytes for rank in ranks])
    if isinstance(given, int | float):
        return np.full(len(ranks), float(given))
    return _floats(list(given))


def _floats(items: Sequence[float]) -> FloatArray:
    return np.asarray(items, dtype=np.float64)


def _integers(items: Sequence[int]) -> IntArray:
    return np.asarray(items, dtype=np.int64)


def _check(
    graph: Graph, cluster: Cluster, n_stages: int, in_flight: Sequence[int],
    memory_limit: float | Sequence[float] | None, costed: Mapping[str, Graph],
) -> None:  # fmt: skip
    faults = []
    if len(in_flight) != n_stages:
        faults.append(f"in_flight has {len(in_flight)} entries for {n_stages} stages")
    if isinstance(memory_limit, Sequence) and len(memory_limit) != n_stages:
        faults.append(f"memory_limit has {len(memory_limit)} entries for {n_stages} stages")
    bare = [op.name for op in graph.ops if op.cost is None]
    if bare:
        faults.append(f"{len(bare)} ops have no cost (first: {bare[0]}); annotate the graph first")
    known = {cluster.devices[0].name, *costed}
    missing = sorted({device.name for device in cluster.devices} - known)
    if missing:
        faults.append(f"no costs for the devices {', '.join(missing)}; annotate the graph for each")
    if faults:
        raise ArgumentError("cannot build the problem: " + "; ".join(faults))
