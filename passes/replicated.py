"""Ops that every stage which needs them runs for itself: sizes, and tensors made from nothing.

A size follows from the shapes of the inputs, which every rank knows. `arange(n)`, `full(…)` and
what is computed from such tensors alone cost less to make than to send.
"""

from __future__ import annotations

from stagecut.ir.graph import Graph, Op, WeightRef, op_refs
from stagecut.passes.users import alias_classes, names_written, number_values, size_ops


def replicated_ops(graph: Graph) -> frozenset[int]:
    """Indices of the ops that belong to no stage of their own."""
    found = set(size_ops(graph))
    local = {v.name for index in found for v in graph.ops[index].results}
    numbers = number_values(graph)
    local |= {i.value.name for i in graph.inputs if i.value and i.value.name in numbers}
    classes = alias_classes(graph)
    written = {classes.get(name, name) for name in names_written(graph.ops)}
    for index, op in enumerate(graph.ops):
        touched = any(classes.get(value.name, value.name) in written for value in op.results)
        if index not in found and not touched and _from_nothing(op, local):
            found.add(index)
            local.update(value.name for value in op.results)
    return frozenset(found)


def _from_nothing(op: Op, local: set[str]) -> bool:
    if not op.effects.pure or not op.results or (op.cost and op.cost.forward.flops):
        return False
    return all(not isinstance(r, WeightRef) and r.name in local for r in op_refs(op)) and (
        not op.target.startswith("module:")
    )
