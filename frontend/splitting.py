"""Which inputs are cut into micro-batches, told from what the trace found out about their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stagecut.ir.graph import Graph, Input
from stagecut.ir.types import Dim, TensorType


def whole_inputs(graph: Graph, declared: Mapping[str, int | None]) -> Graph:
    """The graph with inputs marked whole that only happen to be as long as the batch.

    Those whose length the model fixes, where it leaves that of others free. `declared` inputs stay
    as they are. Notes say which inputs every micro-batch gets whole, and why.
    """
    lengths = {i.path: _length(i) for i in graph.inputs if i.split_dim is not None}
    free = any(not isinstance(length, int) for length in lengths.values())

    def named(item: Input) -> bool:
        return item.path in declared or item.path.split("[")[0] in declared

    def whole(item: Input) -> bool:
        return free and not named(item) and isinstance(lengths.get(item.path), int)

    def reason(item: Input) -> str | None:
        if whole(item):
            return "the model fixes its length"
        if item.split_dim is not None or _length(item) is None:
            return None
        return "as declared" if named(item) else "it has other rows than the batch"

    inputs = tuple(replace(i, split_dim=None) if whole(i) else i for i in graph.inputs)
    notes = tuple(
        f"{item.path} goes whole to every micro-batch: {why}"
        for item in graph.inputs
        if (why := reason(item)) is not None
    )
    return replace(graph, inputs=inputs, notes=(*graph.notes, *notes))


def _length(item: Input) -> Dim | None:
    kind = item.value.type if item.value is not None else None
    return kind.shape[0] if isinstance(kind, TensorType) and kind.shape else None
