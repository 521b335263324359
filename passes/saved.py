"""What autograd keeps, by storage: relu's output, saved by relu and the next linear, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stagecut.ir.graph import Graph, Op, op_refs
from stagecut.ir.types import TensorType
from stagecut.passes.regions import regions
from stagecut.passes.users import storage_roots


@dataclass(frozen=True, slots=True)
class SavedStorage:
    """One storage and the ops whose backward needs it."""

    label: str
    """The value that owns it, or `op#i` for one that only the op's backward knows."""
    ops: tuple[int, ...]
    n_bytes: int


def saved_storages(graph: Graph) -> tuple[SavedStorage, ...]:
    """Every storage that autograd keeps for one micro-batch.

    Weights do not count, nor do the model's inputs: the batch is the user's, who keeps it anyway.
    The graph is annotated; views count as the storage they look at. A recomputed region keeps its
    inputs, which all of its ops need.
    """
    roots = storage_roots(graph)
    outside = {weight.name for weight in graph.weights}
    outside.update(item.value.name for item in graph.inputs if item.value is not None)
    users: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}

    def keep(label: str, n_bytes: int, ops: Sequence[int]) -> None:
        root = roots.get(label, label)
        if root not in outside:
            users.setdefault(root, []).extend(ops)
            sizes[root] = max(sizes.get(root, 0), n_bytes)

    found = regions(graph.ops)
    inside = {index for region in found for index in region.ops}
    for index, op in enumerate(graph.ops):
        for label, n_bytes in _kept(op) if index not in inside else ():
            keep(label, n_bytes, [index])
    types = {value.name: value.type for op in graph.ops for value in op.results}
    for region in found:
        for name in region.inputs if region.replayed else ():
            type_ = types.get(roots.get(name, name))
            if isinstance(type_, TensorType):
                keep(name, type_.hint_bytes, region.ops)
    return tuple(
        SavedStorage(root, tuple(dict.fromkeys(ops)), sizes[root]) for root, ops in users.items()
    )


def _kept(op: Op) -> list[tuple[str, int]]:
    if op.cost is None:
        return []
    given = op_refs(op)
    names = {
        "argument": lambda index: given[index].name,
        "result": lambda index: op.results[index].name,
        "internal": lambda index: f"{op.name}#{index}",
    }
    return [(names[s.kind](s.index), s.n_bytes) for s in op.cost.saved]
