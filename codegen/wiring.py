"""Who runs what and who needs what: the ports of every stage, and what crosses between them.

A value goes straight from the stage that makes it to each stage that uses it. Model inputs are
delivered to whichever stage needs them. Sizes never cross: a stage reads them off a tensor it has,
or is told them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stagecut.ir.errors import PlanError
from stagecut.ir.graph import Graph, Op, Ref, Value, Weight, WeightRef, op_refs, reads, refs
from stagecut.ir.program import Port
from stagecut.ir.schedule import StageEdge
from stagecut.ir.types import ScalarType, SymbolicDim, TensorType


@dataclass(frozen=True, slots=True)
class StageWiring:
    """One stage: its ops, and what comes in and goes out."""

    index: int
    ops: tuple[Op, ...]
    """In program order, sizes included."""
    inputs: tuple[Port, ...]
    results: tuple[Port, ...]
    sizes: tuple[tuple[str, str, int], ...]
    """(value, tensor, dimension): sizes that the stage reads off one of its inputs."""
    weights: tuple[str, ...]
    """Canonical names, in the model's order."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """All stages and the edges between them."""

    stages: tuple[StageWiring, ...]
    edges: tuple[StageEdge, ...]
    deliveries: tuple[tuple[str, ...], ...]
    output_ports: tuple[Port, ...]


@dataclass(frozen=True, slots=True)
class _Homes:
    """Where values are made."""

    values: dict[str, Value]
    maker: dict[str, Op | None]
    """None for model inputs."""
    stages: dict[str, tuple[int, ...]]
    """The stages that run the op that makes a value; empty for model inputs."""

    def tensor(self, name: str) -> bool:
        return isinstance(self.values[name].type, TensorType)


def wire(graph: Graph, stages_of_ops: Sequence[tuple[int, ...]], n_stages: int) -> Wiring:
    """The wiring of a graph whose ops run in the given stages.

    Raises:
        PlanError: a number that depends on data would have to cross a cut, or a value is used
            before the stage that makes it.
    """
    homes = _homes(graph, stages_of_ops)
    last = n_stages - 1
    outputs = _output_values(graph)
    needed = [_needs(graph, homes, stages_of_ops, s) for s in range(n_stages)]
    needed[last] |= {
        name: None for name in outputs if last not in homes.stages[name] and homes.tensor(name)
    }
    sent = {name for names in needed for name in names}
    held = _weights_of_stages(graph, stages_of_ops, n_stages)
    wanted = [sent | (set(outputs) if s == last else set()) for s in range(n_stages)]
    stages = tuple(
        _stage(graph, homes, stages_of_ops, s, needed[s], wanted[s], held[s])
        for s in range(n_stages)
    )
    edges, deliveries = _edges(homes, needed, n_stages)
    ports = tuple(_port(homes, name, last) for name in outputs)
    return Wiring(stages, edges, deliveries, ports)


def _homes(graph: Graph, stages_of_ops: Sequence[tuple[int, ...]]) -> _Homes:
    homes = _Homes({}, {}, {})
    for item in graph.inputs:
        if item.value is not None:
            homes.values[item.value.name] = item.value
            homes.maker[item.value.name] = None
            homes.stages[item.value.name] = ()
    for op, stages in zip(graph.ops, stages_of_ops, strict=True):
        for value in op.results:
            homes.values[value.name] = value
            homes.maker[value.name] = op
            homes.stages[value.name] = tuple(stages)
    return homes


def _output_values(graph: Graph) -> list[str]:
    names = [r.name for output in graph.outputs for r in refs(output) if isinstance(r, Ref)]
    return list(dict.fromkeys(names))


def _stage_ops(graph: Graph, stages_of_ops: Sequence[tuple[int, ...]], stage: int) -> Iterator[Op]:
    return (op for op, s in zip(graph.ops, stages_of_ops, strict=True) if stage in s)


def _needs(
    graph: Graph, homes: _Homes, stages_of_ops: Sequence[tuple[int, ...]], stage: int
) -> dict[str, None]:
    """The tensors that a stage uses and does not make."""
    found: dict[str, None] = {}
    for op in _stage_ops(graph, stages_of_ops, stage):
        if _is_size(op):
            continue
        for name in reads(op):
            if stage not in homes.stages[name] and homes.tensor(name):
                _check_order(homes, name, op, stage)
                found[name] = None
    return found


def _check_order(homes: _Homes, name: str, op: Op, stage: int) -> None:
    makers = homes.stages[name]
    if makers and min(makers) > stage:
        raise PlanError(
            f"{op.name} ({op.scope}) is in stage {stage} and uses %{name}, which only stage "
            f"{min(makers)} makes: a value cannot go back"
        )
    data_dependent = any(
        isinstance(d, SymbolicDim) and d.expression.startswith("u")
        for d in homes.values[name].type.shape  # type: ignore[union-attr]
    )
    if data_dependent:
        raise PlanError(
            f"%{name} has a size that depends on data and would cross into stage {stage} for "
            f"{op.name} ({op.source}); keep both in one stage with pins"
        )


def _is_size(op: Op) -> bool:
    return bool(op.results) and all(isinstance(v.type, ScalarType) for v in op.results)


def _source(homes: _Homes, name: str, stage: int) -> int | None:
    """The stage that `stage` gets a value from: itself where it makes it."""
    makers = homes.stages[name]
    if not makers:
        return None
    return stage if stage in makers else max(m for m in makers if m < stage)


def _stage(
    graph: Graph,
    homes: _Homes,
    stages_of_ops: Sequence[tuple[int, ...]],
    index: int,
    needed: dict[str, None],
    wanted: set[str],
    weights: tuple[str, ...],
) -> StageWiring:
    ops = list(_stage_ops(graph, stages_of_ops, index))
    used = {name for op in ops if not _is_size(op) for name in reads(op)}
    tensors = [_port(homes, name, index) for name in homes.values if name in needed]
    ports = [p for p in tensors if p.name in used]
    kept, sizes, told = _sizes(graph, homes, ops, ports)
    scalars = [Port(name, homes.values[name].type, False, None) for name in told]
    made = [value for op in kept for value in op.results]
    results = [
        Port(v.name, v.type, v.requires_grad, index)
        for v in made
        if v.name in wanted and isinstance(v.type, TensorType)
    ]
    return StageWiring(
        index, tuple(kept), (*ports, *scalars), tuple(results), tuple(sizes), weights
    )


def _port(homes: _Homes, name: str, stage: int) -> Port:
    value = homes.values[name]
    return Port(name, value.type, value.requires_grad, _source(homes, name, stage))


def _sizes(
    graph: Graph, homes: _Homes, ops: list[Op], ports: list[Port]
) -> tuple[list[Op], list[tuple[str, str, int]], list[str]]:
    """Which size ops a stage runs, which sizes it reads off its inputs, which it is told."""
    local = {v.name for op in ops if not _is_size(op) for v in op.results} | {p.name for p in ports}
    dims = {
        dim.expression: (port.name, position)
        for port in reversed(ports)
        if isinstance(port.type, TensorType)
        for position, dim in reversed(list(enumerate(port.type.shape)))
        if isinstance(dim, SymbolicDim)
    }
    run: set[str] = set()
    read: dict[str, tuple[str, str, int]] = {}
    told: dict[str, None] = {}

    def resolve(name: str) -> None:
        if name in run or name in read or name in told:
            return
        op, value = homes.maker[name], homes.values[name]
        expression = value.type.expression  # type: ignore[union-attr]
        if expression in dims:
            read[name] = (name, *dims[expression])
        elif op is not None and all(r in local or not homes.tensor(r) for r in reads(op)):
            run.add(name)
            for operand in reads(op):
                if not homes.tensor(operand):
                    resolve(operand)
        else:
            told[name] = None

    for op in ops:
        if not _is_size(op):
            for name in reads(op):
                if not homes.tensor(name):
                    resolve(name)
    kept = [op for op in ops if not _is_size(op) or any(v.name in run for v in op.results)]
    missing = run - {v.name for op in kept for v in op.results}
    if missing:
        known = {id(op) for op in kept}
        extra = [op for op in graph.ops if any(v.name in missing for v in op.results)]
        kept = [op for op in graph.ops if id(op) in known or op in extra]
    return kept, list(read.values()), list(told)


def _weights_of_stages(
    graph: Graph, stages_of_ops: Sequence[tuple[int, ...]], n_stages: int
) -> list[tuple[str, ...]]:
    """The weights each stage holds; one that nothing uses stays with the one listed before it."""
    users: dict[str, set[int]] = {weight.name: set() for weight in graph.weights}
    for op, stages in zip(graph.ops, stages_of_ops, strict=True):
        for ref in op_refs(op):
            if isinstance(ref, WeightRef):
                users[ref.name].update(stages)
        for weight in owned_weights(op, graph.weights):
            users[weight.name].update(stages)
    for output in graph.outputs:
        for ref in refs(output):
            if isinstance(ref, WeightRef):
                users[ref.name].add(n_stages - 1)
    previous = {0}
    for weight in graph.weights:
        users[weight.name] = users[weight.name] or {min(previous)}
        previous = users[weight.name]
    return [tuple(w.name for w in graph.weights if s in users[w.name]) for s in range(n_stages)]


def owned_weights(op: Op, weights: Sequence[Weight]) -> list[Weight]:
    """The weights inside the module that an opaque op calls."""
    if not op.target.startswith("module:"):
        return []
    inside = f"{op.target.removeprefix('module:')}."
    return [w for w in weights if any(n.startswith(inside) for n in (w.name, *w.aliases))]


def _edges(
    homes: _Homes, needed: list[dict[str, None]], n_stages: int
) -> tuple[tuple[StageEdge, ...], tuple[tuple[str, ...], ...]]:
    order = {name: position for position, name in enumerate(homes.values)}
    carried: dict[tuple[int, int], list[str]] = {}
    for stage in range(n_stages):
        for name in sorted(needed[stage], key=order.__getitem__):
            source = _source(homes, name, stage)
            if source is not None:
                carried.setdefault((source, stage), []).append(name)
    pairs = sorted(carried)
    edges = tuple(
        StageEdge(a, b, any(homes.values[n].requires_grad for n in carried[a, b])) for a, b in pairs
    )
    return edges, tuple(tuple(carried[pair]) for pair in pairs)
