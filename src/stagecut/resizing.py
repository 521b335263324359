"""A traced graph at another number of rows: the same program, other sizes in its example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stagecut.ir.errors import ArgumentError
from stagecut.ir.expression import evaluate
from stagecut.ir.graph import Graph, Value
from stagecut.ir.types import Dim, ScalarType, SymbolicDim, TensorType, Type, dim_hint


def rows_symbol(graph: Graph) -> str | None:
    """The symbol of the batch's rows; None where the trace fixed their number."""
    found = {_batch_dim(value, dim) for value, dim in _batched(graph)}
    symbol = next(iter(found), None)
    return symbol if len(found) == 1 else None


def rows_of(graph: Graph) -> int:
    """The rows of the example's micro-batch; 1 where nothing is cut."""
    for value, dim in _batched(graph):
        if isinstance(value.type, TensorType):
            return dim_hint(value.type.shape[dim])
    return 1


def with_rows(graph: Graph, rows: int) -> Graph:
    """The graph as if its example had had `rows` rows; without costs.

    Raises:
        ArgumentError: the trace does not allow that number.
    """
    if rows == rows_of(graph):
        return graph
    symbol = rows_symbol(graph)
    if symbol is None:
        raise ArgumentError(
            f"the model was traced for {rows_of(graph)} rows a micro-batch and cannot run {rows}"
        )
    symbols = {**_hints(graph), symbol: rows}
    inputs = tuple(
        item if item.value is None else replace(item, value=_resized(item.value, symbols))
        for item in graph.inputs
    )
    ops = tuple(
        replace(op, results=tuple(_resized(v, symbols) for v in op.results), cost=None)
        for op in graph.ops
    )
    return replace(graph, inputs=inputs, ops=ops)


def _batched(graph: Graph) -> list[tuple[Value, int]]:
    return [(i.value, i.split_dim) for i in graph.inputs if i.value and i.split_dim is not None]


def _batch_dim(value: Value, dim: int) -> str | None:
    size = value.type.shape[dim] if isinstance(value.type, TensorType) else None
    if isinstance(size, SymbolicDim) and size.expression.isidentifier():
        return size.expression
    return None


def _hints(graph: Graph) -> dict[str, int]:
    types = [item.value.type for item in graph.inputs if item.value is not None]
    dims = [dim for kind in types if isinstance(kind, TensorType) for dim in kind.shape]
    symbolic = [dim for dim in dims if isinstance(dim, SymbolicDim)]
    return {dim.expression: dim.hint for dim in symbolic if dim.expression.isidentifier()}


def _resized(value: Value, symbols: Mapping[str, int]) -> Value:
    return replace(value, type=_type(value.type, symbols))


def _type(kind: Type, symbols: Mapping[str, int]) -> Type:
    if isinstance(kind, ScalarType):
        return replace(kind, hint=evaluate(kind.expression, symbols))
    return replace(kind, shape=tuple(_dim(dim, symbols) for dim in kind.shape))


def _dim(dim: Dim, symbols: Mapping[str, int]) -> Dim:
    if isinstance(dim, SymbolicDim):
        return replace(dim, hint=int(evaluate(dim.expression, symbols)))
    return dim
