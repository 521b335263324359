"""Regions of recomputed ops: torch's checkpoint keeps a region's inputs, and runs it again later.

    forward     inputs ─ kept ─> region ─> results          nothing else is saved
    backward    inputs ─> region again, up to the last op that saves ─> saved, as without

A region is a run of consecutive ops of one group; sizes computed between them do not part it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stagecut.ir.graph import Graph, Op, Recompute, op_refs
from stagecut.ir.types import ScalarType


@dataclass(frozen=True, slots=True)
class Region:
    """Ops that are recomputed together."""

    ops: tuple[int, ...]
    """Positions among the ops that were searched, in order, sizes left out."""
    inputs: tuple[str, ...]
    """Values and weights that it reads and does not make."""
    results: tuple[str, ...]
    """Values that it makes and a later op reads."""
    replayed: tuple[int, ...]
    """Those of `ops` that the backward runs again; none where autograd saves nothing."""


def group_of(op: Op) -> int | None:
    """The recomputed group that an op belongs to."""
    return next((c.group for c in op.context if isinstance(c, Recompute)), None)


def regions(ops: Sequence[Op]) -> tuple[Region, ...]:
    """Every region of some ops, in order."""
    runs: list[list[int]] = []
    last: int | None = None
    for index, op in enumerate(ops):
        if is_size(op):
            continue
        group = group_of(op)
        if group is not None and group == last:
            runs[-1].append(index)
        elif group is not None:
            runs.append([index])
        last = group
    last_read = {ref.name: i for i, op in enumerate(ops) for ref in op_refs(op)} if runs else {}
    return tuple(_region(ops, run, last_read) for run in runs)


def replayed_ops(graph: Graph) -> frozenset[int]:
    """Indices of the ops that a backward runs again."""
    return frozenset(index for region in regions(graph.ops) for index in region.replayed)


def is_size(op: Op) -> bool:
    """Whether an op makes numbers alone."""
    return bool(op.results) and all(isinstance(value.type, ScalarType) for value in op.results)


def _region(ops: Sequence[Op], run: list[int], last_read: Mapping[str, int]) -> Region:
    made = [value.name for index in run for value in ops[index].results]
    inside = set(made)
    read = dict.fromkeys(ref.name for index in run for ref in op_refs(ops[index]))
    saving = [place for place, index in enumerate(run) if _saves(ops[index])]
    return Region(
        ops=tuple(run),
        inputs=tuple(name for name in read if name not in inside),
        results=tuple(name for name in made if last_read.get(name, -1) > run[-1]),
        replayed=tuple(run[: saving[-1] + 1]) if saving else (),
    )


def _saves(op: Op) -> bool:
    return op.cost is not None and bool(op.cost.saved)
