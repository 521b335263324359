"""Our own JSON format of partitioning problems; docs/problem-format.md describes it.

Read strictly: a key that is not known would leave out a cost, and an optimum of less than what was
meant looks like any other.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeGuard

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from stagecut.ir.errors import ArgumentError
from stagecut.partitioner.network import Network, Node, NodeId, Wire

VERSION = 1
_TOP = ("stagecut", "nodes", "values", "memory_limit_bytes", "latency_seconds", "bytes_per_second")
_COSTS = ("forward_seconds", "backward_seconds", "weight_bytes", "saved_bytes")
_NODE = ("id", *_COSTS, "stage", "group")
_SIZES = ("bytes", "gradient_bytes")
_VALUE = ("from", "to", *_SIZES)
_LISTED = 20
"""Of a file's faults, so many are told."""


def read_own(document: Any) -> Network:
    """The network that a file of our own format states.

    Raises:
        ArgumentError: lists all that is wrong, each with its node and key.
    """
    reader = _Reader()
    network = reader.network(document)
    faults = reader.faults
    if network is None or faults:
        more = [f"and {len(faults) - _LISTED} more"] if len(faults) > _LISTED else []
        count = "1 fault:" if len(faults) == 1 else f"{len(faults)} faults:"
        raise ArgumentError("\n  ".join([count, *faults[:_LISTED], *more]))
    return network


@dataclass(slots=True)
class _Reader:
    faults: list[str] = field(default_factory=list)

    def network(self, document: Any) -> Network | None:
        """None where it has no shape to go on with."""
        if not isinstance(document, Mapping):
            self.faults.append(f"the file holds {_text(document)}, not an object: {{...}}")
            return None
        self._keys("the file", document, _TOP)
        if document.get("stagecut") != VERSION:
            self.faults.append(
                f"stagecut, the format's version, is {_text(document.get('stagecut'))}; "
                f"{VERSION} is the one known here"
            )
        nodes = [self._node(place, item) for place, item in self._objects(document, "nodes")]
        values = [self._value(place, item) for place, item in self._objects(document, "values")]
        wires = [wire for wire in values if wire is not None]
        self._check_ids(nodes, wires)
        limit = self._above_zero(document, "memory_limit_bytes")
        speed = self._above_zero(document, "bytes_per_second")
        return Network(
            nodes=tuple(nodes),
            wires=tuple(wires),
            memory_limit_bytes=limit,
            latency_seconds=self._figure("the file", document, "latency_seconds"),
            seconds_per_byte=1 / speed,
        )

    def _objects(
        self, document: Mapping[str, Any], key: str
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Each object of a list, with the words that say where it is."""
        listed = document.get(key, [])
        if not isinstance(listed, list):
            self.faults.append(f"{key} is {_text(listed)}; give a list of objects")
            return
        if key == "nodes" and not listed:
            self.faults.append("it has no nodes; give at least one under nodes")
        for number, item in enumerate(listed):
            place = f"{key}[{number}]"
            if isinstance(item, Mapping):
                yield place, item
            else:
                self.faults.append(f"{place} is {_text(item)}; give an object: {{...}}")

    def _node(self, place: str, item: Mapping[str, Any]) -> Node:
        name = item.get("id")
        if _is_id(name):
            place = f"node {_text(name)}"
        elif "id" in item:
            self.faults.append(f"{place}: id is {_text(name)}; give a text or a whole number")
        else:
            self.faults.append(f"{place}: id is missing")
        self._keys(place, item, _NODE)
        group, stage = item.get("group"), item.get("stage", -1)
        if group is not None and not _is_id(group):
            self.faults.append(f"{place}: group is {_text(group)}; give a text or a whole number")
            group = None
        if "stage" in item and (not _is_whole(stage) or stage < 0):
            self.faults.append(
                f"{place}: stage is {_text(stage)}; give a whole number, the first stage is 0"
            )
            stage = -1
        forward, backward, weight, saved = (self._figure(place, item, key) for key in _COSTS)
        known = name if _is_id(name) else place
        return Node(known, forward, backward, weight, saved, group=group, pin=stage)

    def _value(self, place: str, item: Mapping[str, Any]) -> Wire | None:
        source, targets = item.get("from"), item.get("to")
        if _is_id(source):
            place = f"{place}, from {_text(source)}"
        else:
            self.faults.append(f"{place}: from is {_text(source)}; give the id of a node")
        self._keys(place, item, _VALUE)
        sizes = [self._figure(place, item, key) for key in _SIZES]
        if not isinstance(targets, list) or not all(map(_is_id, targets)):
            meant = f": [{_text(targets)}]" if _is_id(targets) else ""
            self.faults.append(
                f"{place}: to is {_text(targets)}; give a list of the ids of nodes{meant}"
            )
            return None
        return Wire(source, tuple(targets), *sizes) if _is_id(source) else None

    def _keys(self, place: str, item: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for key in item:
            if key not in known:
                near = get_close_matches(key, known, 1)
                remedy = f"did you mean {near[0]}?" if near else f"it may have {', '.join(known)}"
                self.faults.append(f"{place}: there is no key {_text(key)}; {remedy}")

    def _figure(self, place: str, item: Mapping[str, Any], key: str) -> float:
        """0 where it is left out, or wrong."""
        figure = item.get(key, 0.0)
        if _is_number(figure) and 0 <= figure < np.inf:
            return float(figure)
        self.faults.append(f"{place}: {key} is {_text(figure)}; give a number of 0 or more")
        return 0.0

    def _above_zero(self, document: Mapping[str, Any], key: str) -> float:
        """Infinity where it is left out, or wrong."""
        figure = document.get(key, np.inf)
        if _is_number(figure) and figure > 0:
            return float(figure)
        self.faults.append(f"{key} is {_text(figure)}; give a number above 0, or leave it out")
        return float(np.inf)

    def _check_ids(self, nodes: list[Node], wires: list[Wire]) -> None:
        spelled: dict[str, list[NodeId]] = defaultdict(list)
        for node in nodes:
            spelled[str(node.id)].append(node.id)
        for ids in spelled.values():
            if len(ids) > 1:
                self.faults.append(
                    f"{len(ids)} nodes share an id: {', '.join(map(_text, ids))}; give each its own"
                )
        index = {node.id: i for i, node in enumerate(nodes)}
        for wire in wires:
            for end in (wire.source, *wire.targets):
                if end not in index:
                    near = spelled.get(str(end))
                    meant = f"; did you mean {_text(near[0])}?" if near else ""
                    self.faults.append(
                        f"a value from {_text(wire.source)} names {_text(end)}, "
                        f"and there is no such node{meant}"
                    )
        ends = [(wire.source, target) for wire in wires for target in wire.targets]
        self._check_circles(nodes, [(index[a], index[b]) for a, b in ends if {a, b} <= {*index}])

    def _check_circles(self, nodes: list[Node], ends: list[tuple[int, int]]) -> None:
        for own in sorted({a for a, b in ends if a == b}):
            self.faults.append(f"node {_text(nodes[own].id)} is given its own value; leave it out")
        pairs = np.asarray(ends, dtype=np.int64).reshape(-1, 2)
        graph = coo_array((np.ones(len(ends)), (pairs[:, 0], pairs[:, 1])), [len(nodes)] * 2)
        _, circle = connected_components(graph, directed=True, connection="strong")
        members: dict[int, list[str]] = defaultdict(list)
        for node, number in zip(nodes, circle.tolist(), strict=True):
            members[number].append(_text(node.id))
        for names in members.values():
            if len(names) > 1:
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                self.faults.append(
                    f"nodes {', '.join(names[:5])}{more} wait for each other in a circle; "
                    "break it, or state them as one node"
                )


def _is_number(item: object) -> TypeGuard[float]:
    return isinstance(item, int | float) and not isinstance(item, bool)


def _is_whole(item: object) -> TypeGuard[int]:
    return isinstance(item, int) and not isinstance(item, bool)


def _is_id(item: object) -> TypeGuard[NodeId]:
    return isinstance(item, str) or _is_whole(item)


def _text(item: Any) -> str:
    """As the file spells it, shortened."""
    if item is None:
        return "missing"
    spelled = json.dumps(item)
    return spelled if len(spelled) <= 60 else f"{spelled[:57]}..."
