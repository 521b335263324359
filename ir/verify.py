"""The rules a graph must keep, each a small named function; all faults are listed at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from stagecut.ir.errors import GraphError
from stagecut.ir.graph import Graph, Op, Ref, WeightRef, op_refs, refs
from stagecut.ir.text import print_op

Fault = tuple[str, Op | None]


def verify(graph: Graph) -> Graph:
    """The graph itself, if it keeps every rule.

    Raises:
        GraphError: every fault, each with its rule, its op and the user's source line.
    """
    faults = [(rule.__name__, fault) for rule in _RULES for fault in rule(graph)]
    if not faults:
        return graph
    shown = [_show(rule.strip("_"), message, op) for rule, (message, op) in faults[:20]]
    more = [f"… and {len(faults) - 20} more"] if len(faults) > 20 else []
    head = f"the graph of {graph.name} breaks {len(faults)} rules of the IR:"
    raise GraphError("\n".join([head, *shown, *more]))


def _show(rule: str, message: str, op: Op | None) -> str:
    if op is None:
        return f"- {rule}: {message}"
    where = f" ({op.source})" if op.source else ""
    return f"- {rule}: {message}{where}\n    {print_op(op)}"


def _names_are_unique(graph: Graph) -> Iterator[Fault]:
    inputs = [item.value.name for item in graph.inputs if item.value is not None]
    results = [value.name for op in graph.ops for value in op.results]
    for name, count in Counter(inputs + results).items():
        if count > 1:
            yield f"%{name} is defined {count} times", None
        if not name.isidentifier():
            yield f"%{name} is not a Python identifier", None
    for name, count in Counter(op.name for op in graph.ops).items():
        if count > 1:
            yield f"{count} ops are called {name}", None
    for name, count in Counter(n for w in graph.weights for n in (w.name, *w.aliases)).items():
        if count > 1:
            yield f"@{name} is listed {count} times", None


def _reads_follow_definitions(graph: Graph) -> Iterator[Fault]:
    defined = {item.value.name for item in graph.inputs if item.value is not None}
    weights = {weight.name for weight in graph.weights}
    for op in graph.ops:
        for ref in op_refs(op):
            if isinstance(ref, Ref) and ref.name not in defined:
                yield f"%{ref.name} is read before it is defined", op
            if isinstance(ref, WeightRef) and ref.name not in weights:
                yield f"@{ref.name} is not a weight of the graph", op
        defined.update(value.name for value in op.results)
    for output in graph.outputs:
        for ref in refs(output):
            known = defined if isinstance(ref, Ref) else weights
            if ref.name not in known:
                yield f"the output {ref.name} is never defined", None


def _effects_name_what_the_op_reads(graph: Graph) -> Iterator[Fault]:
    for op in graph.ops:
        read = {ref.name for ref in op_refs(op)}
        for name in (*op.effects.mutates, *op.effects.aliases):
            if name not in read:
                yield f"its effects name {name}, which it does not read", op


def _single_results_are_not_sequences(graph: Graph) -> Iterator[Fault]:
    for op in graph.ops:
        if len(op.results) > 1 and not op.sequence:
            yield "several results, but not marked as a sequence", op


def _trainable_weights_are_parameters(graph: Graph) -> Iterator[Fault]:
    for weight in graph.weights:
        if weight.trainable and weight.kind != "parameter":
            yield f"@{weight.name} is a {weight.kind} and trainable", None


_RULES: tuple[Callable[[Graph], Iterator[Fault]], ...] = (
    _names_are_unique,
    _reads_follow_definitions,
    _effects_name_what_the_op_reads,
    _single_results_are_not_sequences,
    _trainable_weights_are_parameters,
)
