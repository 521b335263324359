"""Who makes and who reads each value, and which storages values live in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from stagecut.ir.graph import Graph, Op, Ref, op_refs, refs
from stagecut.ir.types import ScalarType

# Numbers that depend on data, not on the sizes of the inputs.
_DATA_TO_NUMBER = frozenset({"aten.item.default", "aten._local_scalar_dense.default"})


@dataclass(frozen=True, slots=True)
class Users:
    """Indices of ops by the values they make and read."""

    producer: dict[str, int]
    """For each value that an op makes, that op."""
    readers: dict[str, tuple[int, ...]]
    """For each value and weight, the ops that read it, in program order."""
    outputs: tuple[str, ...]
    """The values among the model's outputs, each once."""

    @staticmethod
    def of(graph: Graph) -> Users:
        """Of every op; an op that only looks at a tensor's sizes does not read it."""
        sizes, numbers = size_ops(graph), number_values(graph)
        producer: dict[str, int] = {}
        readers: dict[str, list[int]] = defaultdict(list)
        for index, op in enumerate(graph.ops):
            producer.update({value.name: index for value in op.results})
            for ref in dict.fromkeys(op_refs(op)):
                if index not in sizes or ref.name in numbers:
                    readers[ref.name].append(index)
        named = [r.name for o in graph.outputs for r in refs(o) if isinstance(r, Ref)]
        frozen = {name: tuple(found) for name, found in readers.items()}
        return Users(producer, frozen, tuple(dict.fromkeys(named)))


def number_values(graph: Graph) -> frozenset[str]:
    """The values that are Python numbers."""
    inputs = (item.value for item in graph.inputs if item.value is not None)
    results = (value for op in graph.ops for value in op.results)
    every = (*inputs, *results)
    return frozenset(value.name for value in every if isinstance(value.type, ScalarType))


def size_ops(graph: Graph) -> frozenset[int]:
    """The ops that compute sizes: numbers known from the inputs' shapes alone."""
    numbers = number_values(graph)
    sizes: set[int] = set()
    known: set[str] = set()
    known.update(i.value.name for i in graph.inputs if i.value and i.value.name in numbers)
    for index, op in enumerate(graph.ops):
        named = {ref.name for ref in op_refs(op) if ref.name in numbers}
        makes_numbers = op.results and all(value.name in numbers for value in op.results)
        if makes_numbers and op.target not in _DATA_TO_NUMBER and named <= known:
            sizes.add(index)
            known.update(value.name for value in op.results)
    return frozenset(sizes)


def storage_roots(graph: Graph) -> dict[str, str]:
    """For each value that lives in another's or a weight's storage, the owner of that storage."""
    roots: dict[str, str] = {}
    for op in graph.ops:
        given = op_refs(op)
        for value, share in zip(op.results, op.cost.shares if op.cost else (), strict=False):
            if share >= 0:
                owner = given[share].name
                roots[value.name] = roots.get(owner, owner)
    return roots


def alias_classes(graph: Graph) -> dict[str, str]:
    """For each value and weight, a name that all which may share its storage have in common."""
    classes: dict[str, str] = {}

    def find(name: str) -> str:
        while classes.get(name, name) != name:
            name = classes[name]
        return name

    for op in graph.ops:
        for name in op.effects.aliases:
            for value in op.results:
                classes[find(value.name)] = find(name)
    every = {ref.name for op in graph.ops for ref in op_refs(op)}
    every.update(value.name for op in graph.ops for value in op.results)
    return {name: find(name) for name in every}


def names_written(ops: Iterable[Op]) -> frozenset[str]:
    """The values and weights that some op writes."""
    return frozenset(name for op in ops for name in op.effects.mutates)
