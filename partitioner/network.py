"""Networks as files state them: nodes with costs, wires with sizes, nodes to be kept together.

`contract` turns one into a problem: a group of nodes is one cluster, precedence that runs in a
circle makes one cluster of the circle, and what a wire costs is charged to whichever clusters it
touches. Backward nodes run against the direction of their forward nodes, so precedence is taken
from wires between forward nodes, and from reversed wires between backward nodes where one of the
two groups has no forward node to speak for it (Tarnawski et al., NeurIPS 2020, appendix).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from stagecut.ir.errors import ArgumentError
from stagecut.ir.problem import FloatArray, Incidence, IntArray, Problem, SendRule
from stagecut.ir.solution import Assignment
from stagecut.partitioner.arrays import sums
from stagecut.partitioner.orders import topological_order

NodeId = str | int


@dataclass(frozen=True, slots=True)
class Node:
    """One operation or layer."""

    id: NodeId
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    weight_bytes: float = 0.0
    saved_bytes: float = 0.0
    is_backward: bool = False
    """Whether it belongs to the backward pass, as a node of its own."""
    group: Hashable = None
    """Nodes of one group share a stage; None is a group of one."""
    pin: int = -1
    """The stage it must be in, or -1."""


@dataclass(frozen=True, slots=True)
class Wire:
    """What one node hands to others."""

    source: NodeId
    targets: tuple[NodeId, ...]
    forward_bytes: float = 0.0
    backward_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Network:
    """A whole file."""

    nodes: tuple[Node, ...]
    wires: tuple[Wire, ...]
    memory_limit_bytes: float = np.inf
    """Of each device."""
    latency_seconds: float = 0.0
    seconds_per_byte: float = 0.0
    send_rule: SendRule = "per_consumer"
    at_most: bool = False
    """Whether fewer stages than devices are as good."""


@dataclass(frozen=True, slots=True, eq=False)
class Contracted:
    """A problem whose clusters are groups of a network's nodes."""

    problem: Problem
    nodes: tuple[NodeId, ...]
    """In the order of the file."""
    cluster: IntArray
    """Shape [nodes]: the cluster of each."""

    def expand(self, assignment: Assignment) -> dict[NodeId, int]:
        """The stage of every node of the network."""
        stages = assignment.stage[self.cluster].tolist()
        return dict(zip(self.nodes, stages, strict=True))


def contract(network: Network, n_stages: int) -> Contracted:
    """The problem of cutting `network` into `n_stages`.

    Raises:
        ArgumentError: there are no nodes, two share an id, a wire names none, or a group is pinned
            twice.
    """
    if not network.nodes:
        raise ArgumentError("the file has no nodes, so there is nothing to cut; give it some")
    index = _index(network)
    ends = _wire_ends(network, index)
    cluster, edges = _clusters(network, ends)
    return Contracted(
        _problem(network, n_stages, cluster, edges, _values(network, index, cluster)),
        tuple(node.id for node in network.nodes),
        cluster,
    )


def _index(network: Network) -> dict[NodeId, int]:
    index = {node.id: i for i, node in enumerate(network.nodes)}
    if len(index) < len(network.nodes):
        ids = [node.id for node in network.nodes]
        twice = sorted({repr(i) for i in ids if ids.count(i) > 1})
        raise ArgumentError(f"several nodes share an id: {', '.join(twice)}; give each its own")
    named = {end for wire in network.wires for end in (wire.source, *wire.targets)}
    if unknown := named - index.keys():
        listed = ", ".join(sorted(map(repr, unknown))[:5])
        raise ArgumentError(f"edges name {len(unknown)} nodes that are not there: {listed}")
    return index


def _wire_ends(network: Network, index: dict[NodeId, int]) -> IntArray:
    """Shape [wires with targets, 2]: source and target of each."""
    ends = [
        (index[wire.source], index[target]) for wire in network.wires for target in wire.targets
    ]
    return np.asarray(ends, dtype=np.int64).reshape(-1, 2)


def _clusters(network: Network, ends: IntArray) -> tuple[IntArray, IntArray]:
    """The cluster of each node, numbered in topological order, and the edges between clusters."""
    is_backward = np.asarray([node.is_backward for node in network.nodes], dtype=bool)
    first: dict[Hashable, int] = {}
    keys = [(i,) if n.group is None else n.group for i, n in enumerate(network.nodes)]
    group = np.asarray([first.setdefault(key, len(first)) for key in keys], dtype=np.int64)
    while True:
        edges = _precedence(group, is_backward, ends)
        count = int(group.max(initial=-1)) + 1
        graph = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), (count, count))
        circles, circle = connected_components(graph, directed=True, connection="strong")
        if circles == count:
            break
        group = circle.astype(np.int64)[group]
    order = topological_order(edges, count, _first_node(group, count))
    rank = np.empty(count, dtype=np.int64)
    rank[order] = np.arange(count)
    return rank[group], rank[edges]


def _precedence(group: IntArray, is_backward: np.ndarray, ends: IntArray) -> IntArray:
    """Shape [e, 2]: the group pairs (a, b) such that a must not come after b."""
    speaks = np.zeros(int(group.max(initial=-1)) + 1, dtype=bool)
    speaks[group[~is_backward]] = True
    source, target = group[ends].T
    backward = is_backward[ends]
    forwards = ~backward.any(axis=1)
    backwards = backward.all(axis=1) & ~(speaks[source] & speaks[target])
    pairs = np.concatenate(
        [
            np.stack([source[forwards], target[forwards]], axis=1),
            np.stack([target[backwards], source[backwards]], axis=1),
        ]
    )
    return np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)


def _first_node(group: IntArray, count: int) -> list[int]:
    first = np.full(count, len(group))
    np.minimum.at(first, group, np.arange(len(group)))
    ranks: list[int] = first.tolist()
    return ranks


def _values(
    network: Network, index: dict[NodeId, int], cluster: IntArray
) -> dict[tuple[int, ...], tuple[float, float]]:
    """Bytes there and back of each distinct (producer, consumers...), those within one dropped."""
    values: dict[tuple[int, ...], tuple[float, float]] = {}
    for wire in network.wires:
        producer = int(cluster[index[wire.source]])
        consumers = {int(cluster[index[target]]) for target in wire.targets} - {producer}
        if consumers:
            members = (producer, *sorted(consumers))
            there, back = values.get(members, (0.0, 0.0))
            values[members] = there + wire.forward_bytes, back + wire.backward_bytes
    return values


def _problem(
    network: Network,
    n_stages: int,
    cluster: IntArray,
    edges: IntArray,
    values: dict[tuple[int, ...], tuple[float, float]],
) -> Problem:
    nodes, n = network.nodes, int(cluster.max(initial=-1)) + 1

    def total(figure: Iterable[float]) -> FloatArray:
        return sums(cluster, np.asarray(list(figure), dtype=np.float64), n)

    each = Incidence(np.arange(n + 1), np.arange(n))
    moved = np.asarray(list(values.values()), dtype=np.float64).reshape(-1, 2)
    return Problem(
        n_stages=n_stages,
        names=_names(network, cluster, n),
        forward_seconds=total(node.forward_seconds for node in nodes)[None],
        backward_seconds=total(node.backward_seconds for node in nodes)[None],
        edges=edges,
        values=Incidence.of([list(members) for members in values]),
        value_forward_bytes=moved[:, 0].copy(),
        value_backward_bytes=moved[:, 1].copy(),
        weights=each,
        weight_bytes=total(node.weight_bytes for node in nodes),
        weight_sync_seconds=np.zeros(n),
        saved=each,
        saved_bytes=total(node.saved_bytes for node in nodes),
        workspace_bytes=np.zeros(n),
        pins=_pins(network, cluster, n, n_stages),
        device_kind=np.zeros(n_stages, dtype=np.int64),
        memory_limit_bytes=np.full(n_stages, network.memory_limit_bytes),
        in_flight=np.ones(n_stages, dtype=np.int64),
        link_latency_seconds=np.full((n_stages, n_stages), network.latency_seconds),
        link_seconds_per_byte=np.full((n_stages, n_stages), network.seconds_per_byte),
        send_rule=network.send_rule,
        allow_empty=network.at_most,
    )


def _names(network: Network, cluster: IntArray, n: int) -> tuple[str, ...]:
    """Each cluster by its first node, and how many more it has."""
    first: dict[int, NodeId] = {}
    for node, c in zip(network.nodes, cluster.tolist(), strict=True):
        first.setdefault(c, node.id)
    more = np.bincount(cluster, minlength=n) - 1
    return tuple(f"{first[c]} and {more[c]} more" if more[c] else f"{first[c]}" for c in range(n))


def _pins(network: Network, cluster: IntArray, n: int, n_stages: int) -> IntArray:
    pins = np.full(n, -1, dtype=np.int64)
    faults = []
    for node, c in zip(network.nodes, cluster.tolist(), strict=True):
        if node.pin >= n_stages:
            faults.append(
                f"node {node.id!r} is pinned to stage {node.pin} of {n_stages}; stages count from 0"
            )
        elif node.pin >= 0 and pins[c] not in (-1, node.pin):
            faults.append(
                f"node {node.id!r} is pinned to stage {node.pin}, and another node that must stay "
                f"with it (same group, or on a circle with it) to stage {pins[c]}; pin both to one"
            )
        pins[c] = max(pins[c], node.pin)
    if faults:
        raise ArgumentError("\n".join(faults))
    return pins
