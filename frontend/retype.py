"""The same graph with other sizes: of another example, or under other names.

rehint:   f32[s0=2, 64]   ->  f32[s0=1, 64]
renamed:  f32[s77=2, 64]  ->  f32[s0=2, 64]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from stagecut.ir.expression import evaluate, symbols_of
from stagecut.ir.graph import Graph, Op, Value
from stagecut.ir.types import Dim, ScalarType, SymbolicDim, TensorType

_SYMBOL = re.compile(r"\bs\d+\b")
Sized = SymbolicDim | ScalarType


def rehint(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph whose hints are those of an example with the given sizes.

    Symbols without a size keep the hints they have.
    """
    known = {**_input_sizes(graph), **sizes}

    def change(sized: Sized) -> Sized:
        if not symbols_of(sized.expression) <= set(known):
            return sized
        hint = evaluate(sized.expression, known)
        if isinstance(sized, SymbolicDim):
            return replace(sized, hint=int(hint))
        return replace(sized, hint=hint)

    return _changed(graph, change)


def _input_sizes(graph: Graph) -> dict[str, int]:
    """The hints of the symbols that are a dimension of an input."""
    types = [item.value.type for item in graph.inputs if item.value is not None]
    dims = [dim for kind in types if isinstance(kind, TensorType) for dim in kind.shape]
    symbolic = [dim for dim in dims if isinstance(dim, SymbolicDim)]
    return {dim.expression: dim.hint for dim in symbolic if dim.expression.isidentifier()}


def renamed(graph: Graph) -> Graph:
    """The graph with its symbols called s0, s1, … in the order in which it mentions them."""
    names: dict[str, str] = {}

    def new(match: re.Match[str]) -> str:
        return names.setdefault(match[0], f"s{len(names)}")

    def change(sized: Sized) -> Sized:
        return replace(sized, expression=_SYMBOL.sub(new, sized.expression))

    changed = _changed(graph, change)
    ranges = [replace(r, symbol=_SYMBOL.sub(new, r.symbol)) for r in graph.ranges]
    return replace(changed, ranges=tuple(sorted(ranges, key=lambda r: (len(r.symbol), r.symbol))))


def _changed(graph: Graph, change: Callable[[Sized], Sized]) -> Graph:
    def value(given: Value) -> Value:
        kind = given.type
        if isinstance(kind, ScalarType):
            return replace(given, type=change(kind))  # type: ignore[arg-type]
        return replace(given, type=TensorType(tuple(map(dim, kind.shape)), kind.dtype))

    def dim(given: Dim) -> Dim:
        return given if isinstance(given, int) else change(given)  # type: ignore[return-value]

    def op(given: Op) -> Op:
        return replace(given, results=tuple(map(value, given.results)))

    inputs = tuple(i if i.value is None else replace(i, value=value(i.value)) for i in graph.inputs)
    return replace(graph, inputs=inputs, ops=tuple(map(op, graph.ops)))
