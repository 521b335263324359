"""Views that no cut should part from their neighbour: contracting them loses nothing.

    u ──v──> w      v is a view of u, takes no time, and w alone reads it

If v is no smaller than u, cutting before v is at least as good as behind it: v joins w (whoever
else reads u). If v is smaller and alone in reading u, cutting behind v is better: v joins u's
producer. A view with several readers stays free: its stage may relay it to the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from stagecut.ir.graph import Graph, Op, Ref, Value, WeightRef, op_refs
from stagecut.ir.types import ScalarType
from stagecut.passes.users import Users


def view_pairs(graph: Graph, users: Users, free: frozenset[int]) -> Iterator[tuple[int, int]]:
    """(view, op it joins) pairs."""
    values = {value.name: value for op in graph.ops for value in op.results}
    inputs = {item.value.name for item in graph.inputs if item.value is not None}
    for index, op in enumerate(graph.ops):
        if index in free or not _is_view(op):
            continue
        source = _source(op, values, inputs)
        readers = users.readers.get(op.results[0].name, ())
        if source is None or len(readers) != 1 or op.results[0].name in users.outputs:
            continue
        other = _joined(op.results[0], source, readers[0], users)
        if other is not None and other not in free:
            yield index, other


def _is_view(op: Op) -> bool:
    cost = op.cost
    return (
        cost is not None
        and len(op.results) == 1
        and cost.shares[:1] != (-1,)
        and cost.forward.kernels == 0
        and cost.backward.kernels == 0
        and op.effects.pure
    )


def _source(op: Op, values: dict[str, Value], inputs: set[str]) -> Value | str | None:
    """The one tensor it views: a value, or the name of a weight or input; None: several."""
    given = {
        ref.name: ref for ref in op_refs(op)
        if isinstance(ref, WeightRef) or ref.name in inputs
        or not isinstance(values[ref.name].type, ScalarType)
    }  # fmt: skip
    if len(given) != 1:
        return None
    (ref,) = given.values()
    return values[ref.name] if isinstance(ref, Ref) and ref.name in values else ref.name


def _joined(made: Value, source: Value | str, reader: int, users: Users) -> int | None:
    if isinstance(source, str):  # every stage may have it: nothing is sent before the view
        return reader
    if made.requires_grad != source.requires_grad:
        return None
    if made.type.hint_bytes >= source.type.hint_bytes:  # type: ignore[union-attr]
        return reader
    alone = len(users.readers.get(source.name, ())) == 1 and source.name not in users.outputs
    return users.producer[source.name] if alone else None
