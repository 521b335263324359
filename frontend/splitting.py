"""Which inputs are cut into micro-batches, told from what the trace found out about their sizes.

An input as long as the batch need not be batched: the edges of a graph are `[2, n]`, and so may
be a batch of two. The trace knows better: the batch reaches the outputs, and other sizes do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from stagecut.ir.graph import Graph, Input, Ref, refs
from stagecut.ir.types import Dim, TensorType


def whole_inputs(graph: Graph, declared: Mapping[str, int | None]) -> Graph:
    """The graph with inputs marked whole that only happen to be as long as the batch.

    That is: the length of dimension 0 was frozen by the trace while that of others was not; or
    no output has it, while some output has that of others. `declared` inputs stay as they are.
    """
    ends = set(_output_lengths(graph))
    guessed = {i.path: _length(i) for i in graph.inputs if i.split_dim is not None}
    batch = {str(length) for length in guessed.values() if str(length) in ends}
    free = any(not isinstance(length, int) for length in guessed.values())

    def whole(item: Input) -> bool:
        if item.path in declared or item.path.split("[")[0] in declared:
            return False
        length = guessed.get(item.path)
        if isinstance(length, int):
            return free
        return bool(batch) and length is not None and str(length) not in batch

    inputs = tuple(replace(i, split_dim=None) if whole(i) else i for i in graph.inputs)
    notes = tuple(
        f"{item.path} goes whole to every micro-batch: its length is not the batch's; "
        f'split={{"{item.path}": 0}} cuts it'
        for item in graph.inputs
        if whole(item)
    )
    return replace(graph, inputs=inputs, notes=(*graph.notes, *notes))


def _length(item: Input) -> Dim | None:
    kind = item.value.type if item.value is not None else None
    return kind.shape[0] if isinstance(kind, TensorType) and kind.shape else None


def _output_lengths(graph: Graph) -> Iterator[str]:
    types = {v.name: v.type for op in graph.ops for v in op.results}
    types |= {i.value.name: i.value.type for i in graph.inputs if i.value is not None}
    for output in graph.outputs:
        for ref in refs(output):
            kind = types.get(ref.name) if isinstance(ref, Ref) else None
            if isinstance(kind, TensorType):
                yield from (str(dim) for dim in kind.shape if not isinstance(dim, int))
