"""Which ops to recompute in the backward, so that a stage fits its memory at the least time.

A candidate is a run of ops of one repeated block. Left out are ops that write something or read
what is written (run twice, they would see their own effect), that the user checkpointed already,
that exist in one mode only, and modules that were not traced, whose effects nobody knows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from stagecut.ir.graph import Graph, Mode, Op, Recompute, op_refs, reads
from stagecut.ir.types import TensorType
from stagecut.passes.blocks import blocks
from stagecut.passes.modules import siblings_joined
from stagecut.passes.regions import group_of, is_size
from stagecut.passes.replicated import replicated_ops
from stagecut.passes.saved import SavedStorage, saved_storages
from stagecut.passes.users import Users, alias_classes, names_written, storage_roots

Group = tuple[int, ...]
"""Ops that are recomputed together, in program order."""

Peak = Callable[[Graph, int], float]
"""Bytes of a stage at its peak, by the graph with its regions marked, and its index."""


def recomputable(graph: Graph) -> tuple[Group, ...]:
    """The candidates of an annotated graph, in program order."""
    eligible, block_of = _eligible(graph), blocks(graph.ops)
    groups: list[list[int]] = []
    last = ""
    for index, op in enumerate(graph.ops):
        if is_size(op):
            continue
        block = block_of[index] if index in eligible else ""
        if block and block == last:
            groups[-1].append(index)
        elif block:
            groups.append([index])
        last = block
    return tuple(_bytes_freed(graph, [tuple(group) for group in groups]))


def recomputed(graph: Graph, groups: Sequence[Group]) -> Graph:
    """The graph with each group in a recomputed region of its own."""
    known = [number for op in graph.ops if (number := group_of(op)) is not None]
    first = max(known, default=-1) + 1
    number_of = {op: first + place for place, group in enumerate(groups) for op in group}
    ops = tuple(
        replace(op, context=(Recompute(number_of[index]), *op.context))
        if index in number_of
        else op
        for index, op in enumerate(graph.ops)
    )
    return replace(graph, ops=ops)


def modules_recomputed(graph: Graph, groups: Sequence[Group]) -> list[str]:
    """The blocks of some groups, siblings joined: `h.0 … h.2`."""
    block_of = blocks(graph.ops)
    return siblings_joined(list(dict.fromkeys(block_of[group[0]] for group in groups)))


def groups_to_fit(
    graph: Graph,
    stages: Sequence[Sequence[int]],
    groups: Sequence[Group],
    limits: Sequence[float],
    peak: Peak,
) -> tuple[Group, ...] | None:
    """The groups to recompute so that every stage's peak is within its limit; None if none do.

    `stages` has for each op the stages that run it, `limits` (shape [k]) bytes. A stage's groups
    are taken one after the other, least forward time a byte saved first, until it fits.
    """
    chosen: list[Group] = []
    for index, limit in enumerate(limits):
        if peak(graph, index) <= limit:
            continue
        ranked = _ranked(graph, stages, index, groups)
        count = _fewest(lambda n: peak(recomputed(graph, ranked[:n]), index) <= limit, len(ranked))  # noqa: B023
        if count is None:
            return None
        chosen += ranked[:count]
    return tuple(sorted(chosen))


def _eligible(graph: Graph) -> frozenset[int]:
    classes = alias_classes(graph)
    written = {classes.get(name, name) for name in names_written(graph.ops)}
    one_mode = {v.name for op in graph.ops if _of_one_mode(op) for v in op.results}
    block_of, users, free = blocks(graph.ops), Users.of(graph), replicated_ops(graph)

    def may(index: int, op: Op) -> bool:
        names = {ref.name for ref in op_refs(op)} | {value.name for value in op.results}
        touches = any(classes.get(name, name) in written for name in names)
        readers = (r for value in op.results for r in users.readers.get(value.name, ()))
        return (
            not op.effects.mutates
            and not touches
            and group_of(op) is None
            and not _of_one_mode(op)
            and one_mode.isdisjoint(reads(op))
            and ":" not in op.target
            and (index not in free or all(block_of[r] == block_of[index] for r in readers))
        )

    return frozenset(index for index, op in enumerate(graph.ops) if may(index, op))


def _of_one_mode(op: Op) -> bool:
    return any(isinstance(c, Mode) for c in op.context)


def _ranked(
    graph: Graph, stages: Sequence[Sequence[int]], index: int, groups: Sequence[Group]
) -> list[Group]:
    """A stage's part of each group that frees memory, cheapest first."""
    mine = [tuple(op for op in group if index in stages[op]) for group in groups]
    freed = _bytes_freed(graph, mine)
    return sorted(freed, key=lambda group: (_seconds(graph, group) / freed[group], group))


def _bytes_freed(graph: Graph, groups: Sequence[Group]) -> dict[Group, int]:
    """What each group no longer keeps, less what it keeps instead; without those that free nothing.

    Of groups of one op nothing is expected.
    """
    storages = saved_storages(graph)
    by_op: dict[int, list[SavedStorage]] = defaultdict(list)
    for storage in storages:
        for op in storage.ops:
            by_op[op].append(storage)
    roots, savers = storage_roots(graph), {s.label: s.ops for s in storages}
    sizes = {v.name: v.type.hint_bytes for op in graph.ops for v in op.results
             if isinstance(v.type, TensorType)}  # fmt: skip
    found = {}
    for group in groups:
        inside = set(group)
        own = {s.label: s.n_bytes for op in group for s in by_op[op] if inside.issuperset(s.ops)}
        made = {value.name for op in group for value in graph.ops[op].results}
        read = {name for op in group for name in reads(graph.ops[op])} - made
        kept = {root for name in read if (root := roots.get(name, name)) in sizes}
        kept = {root for root in kept if inside.issuperset(savers.get(root, ()))}
        found[group] = sum(own.values()) - sum(sizes[root] for root in kept)
    return {group: freed for group, freed in found.items() if freed > 0 and len(group) > 1}


def _seconds(graph: Graph, group: Sequence[int]) -> float:
    return sum(cost.forward.seconds for index in group if (cost := graph.ops[index].cost))


def _fewest(enough: Callable[[int], bool], most: int) -> int | None:
    """The least number that is enough, by bisection; None if not even all are."""
    if not enough(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
