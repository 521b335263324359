"""What running a recomputed region again takes, in the middle of a backward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stagecut.ir.graph import Graph, Op, op_refs
from stagecut.ir.types import TensorType
from stagecut.passes.regions import Region, regions
from stagecut.passes.users import storage_roots


@dataclass(frozen=True, slots=True)
class Replay:
    """Bytes of one region, above what is held when its replay begins."""

    peak: int
    """While it runs."""
    kept: int
    """What autograd has saved when it is done."""
    freed_after: Mapping[int, int]
    """Of `kept`, what nobody needs once the backward of an op, by position, is done."""


def replay_peaks(graph: Graph) -> dict[int, int]:
    """For each op of a recomputed region, the bytes that running its region again takes."""
    found = regions(graph.ops)
    roots = storage_roots(graph) if found else {}
    peaks = [replay(graph.ops, region, roots).peak for region in found]
    return {i: peak for region, peak in zip(found, peaks, strict=True) for i in region.ops}


def replay(ops: Sequence[Op], region: Region, roots: Mapping[str, str]) -> Replay:
    """The replay of a region of a stage.

    `roots` has for each value of the stage the one that owns its storage. What the region reads
    is held anyway; everything that it makes is made anew, results included.
    """
    made = {v.name for index in region.ops for v in ops[index].results}
    saved, savers = saved_in(ops, region.replayed, roots)
    fresh = {root for root in saved if root in made or "#" in root}
    freed: dict[int, int] = defaultdict(int)
    for root in fresh:
        freed[savers[root]] += saved[root]
    kept = {root: saved[root] for root in fresh}
    return Replay(_peak(ops, region, roots, made, kept), sum(kept.values()), dict(freed))


def saved_in(
    ops: Sequence[Op], positions: Sequence[int], roots: Mapping[str, str]
) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of each storage that some ops save, and the first op that does."""
    sizes: dict[str, int] = {}
    savers: dict[str, int] = {}
    for index in positions:
        op = ops[index]
        given = op_refs(op)
        for saved in op.cost.saved if op.cost else ():
            if saved.kind == "internal":
                root = f"{op.name}#{saved.index}"
            else:
                owner = given[saved.index] if saved.kind == "argument" else op.results[saved.index]
                root = roots.get(owner.name, owner.name)
            sizes[root] = max(sizes.get(root, 0), saved.n_bytes)
            savers.setdefault(root, index)
    return sizes, savers


def _peak(
    ops: Sequence[Op],
    region: Region,
    roots: Mapping[str, str],
    made: set[str],
    kept: Mapping[str, int],
) -> int:
    ends = _ends(ops, region, roots, made, kept)
    alive: dict[str, int] = {}
    total = peak = 0
    for index in region.replayed:
        op = ops[index]
        for value in op.results:
            if roots.get(value.name, value.name) == value.name:
                alive[value.name] = _bytes(value.type)
                total += alive[value.name]
        total += sum(n for root, n in kept.items() if root.startswith(f"{op.name}#"))
        peak = max(peak, total)
        total -= sum(alive.pop(root, 0) for root in ends[index])
    return peak


def _ends(
    ops: Sequence[Op],
    region: Region,
    roots: Mapping[str, str],
    made: set[str],
    kept: Mapping[str, int],
) -> dict[int, list[str]]:
    """The storages that end behind each op; those that the region returns do not."""
    last: dict[str, int] = {}
    for index in region.ops:
        op = ops[index]
        for name in (*(ref.name for ref in op_refs(op)), *(v.name for v in op.results)):
            last[roots.get(name, name)] = index
    stay = {roots.get(name, name) for name in region.results} | kept.keys()
    ends: dict[int, list[str]] = defaultdict(list)
    for root in (last.keys() & made) - stay:
        ends[last[root]].append(root)
    return ends


def _bytes(type_: object) -> int:
    return type_.hint_bytes if isinstance(type_, TensorType) else 0
