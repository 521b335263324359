"""The same graph with other example sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stagecut.ir.expression import evaluate, symbols_of
from stagecut.ir.graph import Graph, Op, Value
from stagecut.ir.types import Dim, ScalarType, SymbolicDim, TensorType


def rehint(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph whose hints are those of an example with the given sizes.

    Symbols without a size keep the hints they have.
    """
    inputs = tuple(
        item if item.value is None else replace(item, value=_value(item.value, sizes))
        for item in graph.inputs
    )
    ops = tuple(_op(op, sizes) for op in graph.ops)
    return replace(graph, inputs=inputs, ops=ops)


def _op(op: Op, sizes: Mapping[str, int]) -> Op:
    return replace(op, results=tuple(_value(value, sizes) for value in op.results))


def _value(value: Value, sizes: Mapping[str, int]) -> Value:
    kind = value.type
    if isinstance(kind, TensorType):
        return replace(value, type=replace(kind, shape=tuple(_dim(d, sizes) for d in kind.shape)))
    return replace(value, type=_scalar(kind, sizes))


def _dim(dim: Dim, sizes: Mapping[str, int]) -> Dim:
    if isinstance(dim, int) or not symbols_of(dim.expression) <= set(sizes):
        return dim
    return SymbolicDim(dim.expression, int(evaluate(dim.expression, sizes)))


def _scalar(kind: ScalarType, sizes: Mapping[str, int]) -> ScalarType:
    if not symbols_of(kind.expression) <= set(sizes):
        return kind
    return replace(kind, hint=evaluate(kind.expression, sizes))
