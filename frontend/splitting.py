"""Which inputs are cut into micro-batches, told from what the trace found out about their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stagecut.ir.graph import Graph, Input
from stagecut.ir.types import Dim, TensorType


def whole_inputs(graph: Graph, declared: Mapping[str, int | None]) -> Graph:
    """The graph with inputs marked whole that only happen to be as long as the batch.

    Those whose length the model fixes, where it leaves that of others free. `declared` inputs stay
    as they are.
    """
    lengths = {i.path: _length(i) for i in graph.inputs if i.split_dim is not None}
    free = any(not isinstance(length, int) for length in lengths.values())

    def whole(item: Input) -> bool:
        named = item.path in declared or item.path.split("[")[0] in declared
        return free and not named and isinstance(lengths.get(item.path), int)

    inputs = tuple(replace(i, split_dim=None) if whole(i) else i for i in graph.inputs)
    notes = tuple(
        f"{item.path} goes whole to every micro-batch: the model fixes its length"
        for item in graph.inputs
        if whole(item)
    )
    return replace(graph, inputs=inputs, notes=(*graph.notes, *notes))


def _length(item: Input) -> Dim | None:
    kind = item.value.type if item.value is not None else None
    return kind.shape[0] if isinstance(kind, TensorType) and kind.shape else None
