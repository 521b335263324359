"""What each stage of a cut graph runs, and what the rest of the graph decides about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stagecut.ir.graph import Graph, Op, Value, Weight, op_refs
from stagecut.ir.types import ScalarType
from stagecut.passes.held import trained, weights_of_ops
from stagecut.passes.regions import is_size
from stagecut.passes.users import Users


@dataclass(frozen=True, slots=True)
class Part:
    """One stage of a graph; its ops may carry other regions than the graph's."""

    ops: tuple[Op, ...]
    positions: tuple[int, ...]
    """Where each op stands in the graph."""
    values: Mapping[str, Value]
    """Every tensor value of the graph."""
    received: tuple[str, ...]
    results: tuple[str, ...]
    """Values that others read, and the model's outputs on the last stage."""
    outputs: frozenset[str]
    """The values among the model's outputs."""
    outside: frozenset[str]
    """The graph's weights and inputs, whose storages no micro-batch pays for."""
    weights: tuple[Weight, ...]
    """Those that the ops read; trainable where a gradient reaches them."""


def parts_of(graph: Graph, stages: Sequence[Sequence[int]], n_stages: int) -> tuple[Part, ...]:
    """The part of every stage; `stages` has for each op the stages that run it."""
    users, weights = Users.of(graph), trained(graph)
    values = {
        value.name: value
        for op in graph.ops
        for value in op.results
        if not isinstance(value.type, ScalarType)
    }
    outside = {weight.name for weight in graph.weights}
    outside.update(item.value.name for item in graph.inputs if item.value is not None)
    outputs, frozen = frozenset(users.outputs), frozenset(outside)
    positions: list[list[int]] = [[] for _ in range(n_stages)]
    for position, where in enumerate(stages):
        for stage in where:
            positions[stage].append(position)
    found = []
    for index, mine in enumerate(positions):
        ops = tuple(graph.ops[position] for position in mine)
        here = {value.name for op in ops for value in op.results}
        read = {ref.name for op in ops if not is_size(op) for ref in op_refs(op)}
        used = weights_of_ops(graph, ops)
        found.append(
            Part(
                ops=ops,
                positions=tuple(mine),
                values=values,
                received=tuple(n for n in values if n in read and n not in here),
                results=tuple(
                    value.name
                    for position, op in zip(mine, ops, strict=True)
                    if len(stages[position]) == 1
                    for value in op.results
                    if value.name in values and _leaves(value.name, index, stages, users)
                ),
                outputs=outputs,
                outside=frozen,
                weights=tuple(weight for weight in weights if weight.name in used),
            )
        )
    return tuple(found)


def _leaves(name: str, index: int, stages: Sequence[Sequence[int]], users: Users) -> bool:
    """Whether another stage reads the value, or the model returns it."""
    readers = {stage for reader in users.readers.get(name, ()) for stage in stages[reader]}
    return bool(readers - {index}) or name in users.outputs
