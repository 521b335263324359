"""Which stage the user wants a module's ops in."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Mapping, Sequence

from stagecut.ir.errors import ArgumentError, InfeasibleError
from stagecut.ir.graph import Graph, Op, op_refs
from stagecut.passes.groups import Clustering
from stagecut.passes.users import alias_classes, names_written


def pins_of_ops(graph: Graph, pins: Mapping[str, int], n_stages: int) -> tuple[int, ...]:
    """For each op, the stage of the longest pinned path that it lies in, or -1.

    Raises:
        ArgumentError: a path that no op lies in, or a stage that does not exist; all at once.
    """
    scopes = tuple(op.scope for op in graph.ops)
    faults = [*_unknown(scopes, pins), *_out_of_range(pins, n_stages)]
    if faults:
        raise ArgumentError("pins cannot be used: " + "; ".join(faults))
    return tuple(_pin(scope, pins) for scope in scopes)


def pins_of_clusters(graph: Graph, clustering: Clustering, pin_of_op: tuple[int, ...]) -> list[int]:
    """For each cluster the stage its ops are pinned to, or -1.

    Raises:
        InfeasibleError: ops that cannot be separated are pinned to different stages.
    """
    found, faults = [], []
    for ops in clustering.ops_of_cluster:
        stages = sorted({pin_of_op[op] for op in ops} - {-1})
        found.append(stages[0] if stages else -1)
        if len(stages) > 1:
            faults.append(_conflict(graph, ops, pin_of_op))
    if faults:
        raise InfeasibleError("; ".join(faults))
    return found


def _inside(scope: str, path: str) -> bool:
    return scope == path or scope.startswith(f"{path}.")


def _pin(scope: str, pins: Mapping[str, int]) -> int:
    matching = [path for path in pins if _inside(scope, path)]
    return pins[max(matching, key=len)] if matching else -1


def _unknown(scopes: tuple[str, ...], pins: Mapping[str, int]) -> list[str]:
    known = {".".join(s.split(".")[:i]) for s in scopes for i in range(1, s.count(".") + 2)}
    faults = []
    for path in pins:
        if path not in known:
            near = difflib.get_close_matches(path, sorted(known), n=3)
            hint = f" (did you mean {', '.join(near)}?)" if near else ""
            faults.append(f"no op runs in a module called {path!r}{hint}")
    return faults


def _out_of_range(pins: Mapping[str, int], n_stages: int) -> list[str]:
    return [
        f"{path!r} is pinned to stage {stage}, and the stages are 0 to {n_stages - 1}"
        for path, stage in pins.items()
        if not 0 <= stage < n_stages
    ]


def _conflict(graph: Graph, ops: tuple[int, ...], pin_of_op: tuple[int, ...]) -> str:
    first = {pin_of_op[op]: graph.ops[op] for op in reversed(ops) if pin_of_op[op] >= 0}
    places = " and ".join(
        f"{op.scope or op.name} to stage {stage}" for stage, op in sorted(first.items())
    )
    shared = _written_weights(graph, [graph.ops[op] for op in ops])
    share = f"share {', '.join(shared)}, which" if shared else "share a tensor that"
    return (
        f"pinned apart but inseparable: {places} (they {share} one of them writes, "
        "or each needs what the other makes); pin them to one stage"
    )


def _written_weights(graph: Graph, ops: Sequence[Op]) -> list[str]:
    """The weights and buffers that some of the ops write and that several modules use."""
    classes = alias_classes(graph)
    written = {classes.get(name, name) for name in names_written(ops)}
    scopes: dict[str, set[str]] = defaultdict(set)
    for op in ops:
        for ref in op_refs(op):
            scopes[classes.get(ref.name, ref.name)].add(op.scope)
    shared = {name for name in written if len(scopes[name]) > 1}
    return [w.name for w in graph.weights if classes.get(w.name, w.name) in shared]
