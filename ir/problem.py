"""The partitioning problem: plain arrays, nothing of torch or of the model's code.

Legend:  n clusters, v values, w weights, s saved storages, e edges, k stages, t device kinds.

Clusters are numbered in program order, which is a topological order of `edges`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stagecut.ir.errors import ArgumentError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
SendRule = Literal["per_consumer", "once"]


@dataclass(frozen=True, slots=True, eq=False)
class Incidence:
    """Which clusters touch each item: item i touches members[offsets[i]:offsets[i + 1]]."""

    offsets: IntArray
    """Shape [items + 1], from 0 to len(members)."""
    members: IntArray
    """Cluster indices; within one item each appears once."""

    @staticmethod
    def of(lists: list[list[int]]) -> Incidence:
        """Builds the incidence of a list of member lists."""
        lengths = [len(members) for members in lists]
        offsets = (
            np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]) if lists else np.zeros(1)
        )
        flat = [member for members in lists for member in members]
        return Incidence(offsets.astype(np.int64), np.asarray(flat, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, item: int) -> IntArray:
        return self.members[self.offsets[item] : self.offsets[item + 1]]


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Cut n clusters into `n_stages` non-empty stages so that the largest stage load is least.

    The load of a stage is its forward and backward seconds (on the device at its position), plus
    what it sends and receives. A transfer of b bytes from position p to position q takes
    link_latency_seconds[p, q] + b * link_seconds_per_byte[p, q] on both sides; a value pays one
    for its activation and, where value_backward_bytes > 0, one for its gradient in return.

    send_rule "per_consumer": the producer's stage pays once for each other stage that consumes.
    send_rule "once": every stage that touches a value which another stage touches too pays once,
    whatever the number of others and whichever end it is (the published workloads' rule). Where
    links differ, a consumer pays its link with the producer, the producer its dearest such link.

    `edges` alone carry precedence. `values` carry transfer costs only: one may be produced in a
    later stage than it is consumed in (backward nodes of the published workloads).
    """

    n_stages: int
    """k."""
    names: tuple[str, ...]
    """n labels, for messages."""
    forward_seconds: FloatArray
    """Shape [t, n]: seconds of one micro-batch's forward on each device kind."""
    backward_seconds: FloatArray
    """Shape [t, n]."""
    edges: IntArray
    """Shape [e, 2]: (a, b) means a's stage is not after b's. a < b always."""
    values: Incidence
    """What may cross: the first member produces it, the others consume it."""
    value_forward_bytes: FloatArray
    """Shape [v]: bytes of the activation."""
    value_backward_bytes: FloatArray
    """Shape [v]: bytes of its gradient; 0 where none is sent back."""
    weights: Incidence
    """The users of each weight. A stage holds a weight once if it has any of its users."""
    weight_bytes: FloatArray
    """Shape [w]: bytes held for the whole step (weight, gradient, optimizer state)."""
    weight_sync_seconds: FloatArray
    """Shape [w]: seconds a micro-batch that each holder pays when several stages hold it."""
    saved: Incidence
    """The clusters whose backward needs each saved storage. A stage keeps it once if it has any."""
    saved_bytes: FloatArray
    """Shape [s]: bytes a micro-batch in flight."""
    workspace_bytes: FloatArray
    """Shape [n]: bytes needed only while the cluster runs; a stage needs the largest."""
    pins: IntArray
    """Shape [n]: the stage a cluster must be in, or -1."""
    device_kind: IntArray
    """Shape [k]: the row of forward_seconds that holds at each stage position."""
    memory_limit_bytes: FloatArray
    """Shape [k]: infinity where there is no limit."""
    in_flight: IntArray
    """Shape [k]: micro-batches whose saved tensors a stage holds at its peak."""
    link_latency_seconds: FloatArray
    """Shape [k, k]."""
    link_seconds_per_byte: FloatArray
    """Shape [k, k]."""
    send_rule: SendRule = "per_consumer"
    allow_empty: bool = False
    """Whether stages may stay empty, so that n_stages is a maximum."""
    scopes: tuple[str, ...] = ()
    """n module paths (`transformer.h.3.mlp`), or empty where the problem has no modules."""

    def __post_init__(self) -> None:
        for fault in _faults(self):
            raise ArgumentError(f"not a partitioning problem: {fault}")
        for name in self.__slots__:
            item = getattr(self, name)
            arrays = (item.offsets, item.members) if isinstance(item, Incidence) else (item,)
            for array in arrays:
                if isinstance(array, np.ndarray):
                    array.setflags(write=False)

    @property
    def n(self) -> int:
        """The number of clusters."""
        return len(self.names)

    def memory_bytes(self, stage: int, held: float, saved: float, workspace: float) -> float:
        """Peak bytes of a stage at position `stage`, from its three terms."""
        return held + saved * float(self.in_flight[stage]) + workspace


@dataclass(frozen=True, slots=True, eq=False)
class Relief:
    """Memory that a stage can have for time: what recomputing each cluster frees and costs.

    A stage frees a share of what its clusters can, in whole grains, and pays the same share of
    their seconds.
    """

    seconds: FloatArray
    """Shape [t, n]: of the forward that runs again, on each device kind."""
    freed_bytes: FloatArray
    """Shape [n]: no longer saved, a micro-batch in flight."""
    replay_bytes: FloatArray
    """Shape [n]: there again while the cluster's region runs again; a stage needs the largest."""
    grain_bytes: float
    """What one region frees, of those that clusters are recomputed in; 0 where any share can be."""


def _faults(p: Problem) -> list[str]:
    n, k, t = len(p.names), p.n_stages, len(p.forward_seconds)
    shapes = {
        "forward_seconds": (t, n), "backward_seconds": (t, n), "edges": (len(p.edges), 2),
        "value_forward_bytes": (len(p.values),), "value_backward_bytes": (len(p.values),),
        "weight_bytes": (len(p.weights),), "weight_sync_seconds": (len(p.weights),),
        "saved_bytes": (len(p.saved),), "workspace_bytes": (n,), "pins": (n,),
        "device_kind": (k,), "memory_limit_bytes": (k,), "in_flight": (k,),
        "link_latency_seconds": (k, k), "link_seconds_per_byte": (k, k),
    }  # fmt: skip
    faults = [
        f"{name} has shape {getattr(p, name).shape}, expected {shape}"
        for name, shape in shapes.items()
        if getattr(p, name).shape != shape
    ]
    if faults:
        return faults
    if k < 1:
        faults.append(f"n_stages is {k}")
    for name in ("values", "weights", "saved"):
        members = getattr(p, name).members
        if len(members) and not (0 <= members.min() and members.max() < n):
            faults.append(f"{name} names a cluster outside 0..{n - 1}")
    if len(p.edges) and not (p.edges[:, 0] < p.edges[:, 1]).all():
        faults.append("an edge does not go forward in program order")
    if len(p.edges) and not (0 <= p.edges.min() and p.edges.max() < n):
        faults.append(f"edges name a cluster outside 0..{n - 1}")
    if len(p.values) and not (np.diff(p.values.offsets) > 0).all():
        faults.append("a value has no producer")
    if n and not (-1 <= p.pins.min() and p.pins.max() < k):
        faults.append(f"a pin names a stage outside 0..{k - 1}")
    if len(p.scopes) not in (0, n):
        faults.append(f"scopes has {len(p.scopes)} entries, expected {n} or none")
    return faults
