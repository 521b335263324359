"""Which ops to recompute in the backward, so that a stage fits its memory at the least time.

A candidate is a run of ops of one repeated block. Left out are ops that write something or read
what is written (run twice, they would see their own effect), that the user checkpointed already,
that exist in one mode only, and modules that were not traced, whose effects nobody knows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stagecut.ir.graph import Graph, Mode, Op, Recompute, op_refs, reads
from stagecut.ir.problem import Relief
from stagecut.ir.types import TensorType
from stagecut.passes.blocks import blocks
from stagecut.passes.groups import Clustering
from stagecut.passes.modules import siblings_joined
from stagecut.passes.parts import Part
from stagecut.passes.regions import group_of, is_size
from stagecut.passes.replay import replay_peaks
from stagecut.passes.replicated import replicated_ops
from stagecut.passes.saved import SavedStorage, saved_storages
from stagecut.passes.users import Users, alias_classes, names_written, storage_roots

Group = tuple[int, ...]
"""Ops that are recomputed together, in program order."""

Peak = Callable[[Part, int], float]
"""Bytes of a stage at its peak, by its part with its regions marked, and its index."""


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
    return tuple(_Freed.of(graph).by([tuple(group) for group in groups]))


def recomputed(graph: Graph, groups: Sequence[Group]) -> Graph:
    """The graph with each group in a recomputed region of its own."""
    return replace(graph, ops=_marked(graph.ops, range(len(graph.ops)), groups))


def modules_recomputed(graph: Graph, groups: Sequence[Sequence[Group]]) -> list[list[str]]:
    """For each stage's groups their blocks, siblings joined: `h.0 … h.2`."""
    block_of = blocks(graph.ops)
    return [
        siblings_joined(list(dict.fromkeys(block_of[group[0]] for group in mine)))
        for mine in groups
    ]


def relief_of(graphs: Sequence[Graph], clustering: Clustering, groups: Sequence[Group]) -> Relief:
    """What recomputing each cluster frees and costs, of `graphs` annotated for each device kind.

    What a group frees is spread over its clusters as its forward seconds are.
    """
    n, graph = len(clustering.ops_of_cluster), graphs[0]
    seconds, freed, replayed = np.zeros((len(graphs), n)), np.zeros(n), np.zeros(n)
    peaks = replay_peaks(recomputed(graph, groups))
    gains = _Freed.of(graph).by(groups)
    for group, n_bytes in gains.items():
        total = max(_seconds(graph, group), np.finfo(float).tiny)
        for op in group:
            cluster = clustering.cluster_of_op[op]
            if cluster < 0:
                continue
            seconds[:, cluster] += [_seconds(each, (op,)) for each in graphs]
            freed[cluster] += n_bytes * _seconds(graph, (op,)) / total
            replayed[cluster] = max(replayed[cluster], peaks.get(op, 0))
    return Relief(seconds, freed, replayed, float(np.median(list(gains.values()))))


def groups_to_fit(
    graph: Graph, parts: Sequence[Part], groups: Sequence[Group], limits: Sequence[float],
    peak: Peak,
) -> tuple[Group, ...] | None:  # fmt: skip
    """The groups to recompute so that every stage's peak is within its limit; None if none do.

    `limits` (shape [k]) are bytes. A stage's groups are taken one after the other, least forward
    time a byte saved first, until it fits.
    """
    chosen: list[Group] = []
    freed = _Freed.of(graph)
    for index, (part, limit) in enumerate(zip(parts, limits, strict=True)):
        without = peak(part, index)
        if without <= limit:
            continue
        ranked = _ranked(graph, part, groups, freed)

        def with_first(count: int, part: Part = part, ranked: list[Group] = ranked) -> float:
            ops = _marked(part.ops, part.positions, ranked[:count])
            return peak(replace(part, ops=ops), index)  # noqa: B023

        count = _fewest(with_first, len(ranked), limit, without)
        if count is None:
            return None
        chosen += ranked[:count]
    return tuple(sorted(chosen))


def _marked(ops: Sequence[Op], positions: Sequence[int], groups: Sequence[Group]) -> tuple[Op, ...]:
    """Some ops, by their positions in the graph, with each group in a region of its own."""
    known = [number for op in ops if (number := group_of(op)) is not None]
    first = max(known, default=-1) + 1
    number_of = {op: first + place for place, group in enumerate(groups) for op in group}
    return tuple(
        replace(op, context=(Recompute(number_of[position]), *op.context))
        if position in number_of
        else op
        for position, op in zip(positions, ops, strict=True)
    )


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


def _ranked(graph: Graph, part: Part, groups: Sequence[Group], freed: _Freed) -> list[Group]:
    """A stage's part of each group that frees memory, cheapest first."""
    here = frozenset(part.positions)
    gains = freed.by([tuple(op for op in group if op in here) for group in groups])
    return sorted(gains, key=lambda group: (_seconds(graph, group) / gains[group], group))


@dataclass(frozen=True, slots=True)
class _Freed:
    """What recomputing some ops of a graph frees."""

    graph: Graph
    storages: Mapping[int, Sequence[SavedStorage]]
    """For each op, what its backward needs."""
    savers: Mapping[str, Sequence[int]]
    roots: Mapping[str, str]
    sizes: Mapping[str, int]

    @staticmethod
    def of(graph: Graph) -> _Freed:
        storages, by_op = saved_storages(graph), defaultdict(list)
        for storage in storages:
            for op in storage.ops:
                by_op[op].append(storage)
        sizes = {v.name: v.type.hint_bytes for op in graph.ops for v in op.results
                 if isinstance(v.type, TensorType)}  # fmt: skip
        return _Freed(graph, by_op, {s.label: s.ops for s in storages}, storage_roots(graph), sizes)

    def by(self, groups: Sequence[Group]) -> dict[Group, int]:
        """What each group no longer keeps, less what it keeps instead, where that is above 0.

        Of groups of one op nothing is expected.
        """
        found = {group: self._bytes(group) for group in groups if len(group) > 1}
        return {group: freed for group, freed in found.items() if freed > 0}

    def _bytes(self, group: Group) -> int:
        ops, inside = [self.graph.ops[op] for op in group], set(group)
        own = {s.label: s.n_bytes for op in group for s in self.storages.get(op, ())
               if inside.issuperset(s.ops)}  # fmt: skip
        made = {value.name for op in ops for value in op.results}
        read = {name for op in ops for name in reads(op)} - made
        kept = {root for name in read if (root := self.roots.get(name, name)) in self.sizes}
        kept = {root for root in kept if inside.issuperset(self.savers.get(root, ()))}
        return sum(own.values()) - sum(self.sizes[root] for root in kept)


def _seconds(graph: Graph, group: Sequence[int]) -> float:
    return sum(cost.forward.seconds for index in group if (cost := graph.ops[index].cost))


def _fewest(peak: Callable[[int], float], most: int, limit: float, without: float) -> int | None:
    """The least number that brings the peak within the limit; None if not even all do.

    Bisection, after two looks where a straight line between none and all crosses the limit.
    """
    least = peak(most)
    if least > limit:
        return None
    low, high = 0, most
    guess = math.ceil(most * (without - limit) / max(without - least, 1.0))
    for look in (0, 1):
        at = guess if look == 0 else (high - 1 if high == guess else low + 1)
        if low < at < high:
            low, high = (low, at) if peak(at) <= limit else (at, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if peak(middle) <= limit else (middle, high)
    return high
