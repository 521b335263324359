r"""The exact optimum by dynamic programming over prefixes of the graph (downsets, ideals).

Legend:  k stages, n clusters, e items, P_s the prefixes that boundary s may be, J a prefix of P_s,
I one of P_(s - 1) inside it; N[I, e] members of item e in prefix I.

    f[s, J] = min over I in P_(s - 1), I inside J, of max(f[s - 1, I], load of stage J \ I)

After Tarnawski et al. (NeurIPS 2020), whose programme runs over all prefixes of a DAG; here the
lower bound's windows leave each boundary a few. Where the windows are too wide the count exceeds
its budget and the caller takes the integer programme instead. A stage pays for item e if
0 < N[J, e] - N[I, e] < size of e: all the loads of one J are a few vector operations.
Exact where what a stage pays depends on the stage alone: send rule "once" or values with one
consumer, and equal links.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stagecut.ir.problem import FloatArray, Incidence, IntArray, Problem
from stagecut.ir.solution import Assignment
from stagecut.partitioner.arrays import BoolArray
from stagecut.partitioner.closed_sets import closed_sets
from stagecut.partitioner.evaluate import LIMIT_TOLERANCE, round_trip_seconds

MOST_PREFIXES = 24_000
_MOST_CELLS = 20_000_000
"""Prefixes times clusters: what their tables may take."""
_MOST_PAIRS = 1_500_000_000


def stage_alone_decides(problem: Problem) -> BoolArray:
    """Shape [v]: whether what a stage pays for a value depends on that stage alone."""
    off_diagonal = ~np.eye(problem.n_stages, dtype=bool)
    links = (problem.link_latency_seconds, problem.link_seconds_per_byte)
    equal = all(len(np.unique(link[off_diagonal])) <= 1 for link in links)
    few = np.diff(problem.values.offsets) <= 2
    return few & equal if problem.send_rule == "per_consumer" else np.full(len(few), equal)


@dataclass(frozen=True, slots=True)
class Answer:
    """What an exact search found."""

    assignment: Assignment | None
    """Below the limit that was asked for, and optimal if `complete`."""
    complete: bool
    """Whether there is no better one than that (none below the limit, where it is None)."""
    refuted_seconds: float = 0.0
    """No assignment has a bottleneck below the lesser of this and the limit."""


def best_by_downsets(
    problem: Problem,
    low: IntArray,
    high: IntArray,
    upper: float,
    out_of_time: Callable[[], bool],
    most_prefixes: int = MOST_PREFIXES,
) -> Answer | None:
    """The best assignment with a bottleneck below `upper` and stages low..high [n].

    None where a boundary has more prefixes than `most_prefixes`, or this method does not apply.
    """
    if not stage_alone_decides(problem).all():
        return None
    most_prefixes = min(most_prefixes, _MOST_CELLS // problem.n)
    levels = [[0]]
    for boundary in range(1, problem.n_stages):
        outside, inside = low >= boundary, high < boundary
        prefixes = _prefixes(problem, outside, inside, most_prefixes)
        if prefixes is None:
            return None
        levels.append(prefixes)
    levels.append([(1 << problem.n) - 1])
    if sum(len(a) * len(b) for a, b in pairwise(levels)) > _MOST_PAIRS:
        return None
    counted = [_Level.of(problem, prefixes) for prefixes in levels]
    return _search(problem, counted, upper, out_of_time)


def _prefixes(
    problem: Problem, outside: BoolArray, inside: BoolArray, most: int
) -> list[int] | None:
    """All prefixes as bit masks that have `inside` and nothing `outside`; None if too many."""
    before = [0] * problem.n
    after: list[list[int]] = [[] for _ in range(problem.n)]
    for a, b in problem.edges.tolist():
        before[b] |= 1 << a
        after[a].append(b)
    start = sum(1 << int(c) for c in np.flatnonzero(inside))
    barred = sum(1 << int(c) for c in np.flatnonzero(outside))
    for c in np.flatnonzero(inside).tolist():
        start |= before[c]
    closed = _closed(before, start)
    if closed & barred:
        return []
    return closed_sets(before, after, closed, barred, most)


def _closed(before: list[int], prefix: int) -> int:
    """`prefix` with all that precedes it; clusters are numbered in topological order."""
    for c in range(len(before) - 1, -1, -1):
        if prefix >> c & 1:
            prefix |= before[c]
    return prefix


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """The prefixes that one boundary may be, by work."""

    bits: NDArray[np.uint64]
    """Shape [L, words]."""
    members: BoolArray
    """Shape [L, n]."""
    work: FloatArray
    """Shape [t, L]."""
    shared: NDArray[np.int16]
    """Shape [L, items]: members in the prefix, of what is paid for."""
    held: NDArray[np.int16]
    """Shape [L, weights]."""
    saved: NDArray[np.int16]
    """Shape [L, saved]."""

    @staticmethod
    def of(problem: Problem, prefixes: list[int]) -> _Level:
        words = (problem.n + 63) // 64
        raw = b"".join(prefix.to_bytes(words * 8, "little") for prefix in prefixes)
        octets = np.frombuffer(raw, dtype=np.uint8).reshape(len(prefixes), words * 8)
        members = np.unpackbits(octets, axis=1, bitorder="little")[:, : problem.n].astype(bool)
        seconds = problem.forward_seconds + problem.backward_seconds
        work = seconds @ members.T
        order = np.argsort(work[problem.device_kind[0]], kind="stable")
        members = members[order]
        limited = bool(np.isfinite(problem.memory_limit_bytes).any())
        nothing = np.zeros((len(prefixes), 0), dtype=np.int16)
        values, weights = _counts(problem.values, members), _counts(problem.weights, members)
        return _Level(
            octets.view(np.uint64)[order],
            members,
            work[:, order],
            np.concatenate([values, weights[:, problem.weight_sync_seconds > 0]], axis=1),
            weights if limited else nothing,
            _counts(problem.saved, members) if limited else nothing,
        )

    def __len__(self) -> int:
        return len(self.bits)


def _counts(items: Incidence, members: BoolArray) -> NDArray[np.int16]:
    """Shape [L, items]: how many members of each item each prefix has."""
    item = np.repeat(np.arange(len(items)), np.diff(items.offsets))
    incidence = np.zeros((members.shape[1], len(items)), dtype=np.float32)
    incidence[items.members, item] = 1.0
    counts: NDArray[np.int16] = np.rint(members.astype(np.float32) @ incidence).astype(np.int16)
    return counts


def _search(
    problem: Problem, levels: list[_Level], upper: float, out_of_time: Callable[[], bool]
) -> Answer:
    stages, carried = _StageLoads(problem), _positions_are_alike(problem)
    reached, fresh = np.zeros(1), np.ones(1, dtype=bool)
    parents: list[IntArray] = []
    for stage in range(problem.n_stages):
        below, above = levels[stage], levels[stage + 1]
        here = {bits.tobytes(): i for i, bits in enumerate(below.bits)} if carried else {}
        best, parent = np.full(len(above), upper), np.full(len(above), -1)
        for j in range(len(above)):
            if j % 64 == 0 and out_of_time():
                return Answer(None, complete=False)
            same = here.get(above.bits[j].tobytes(), -1)
            if same >= 0 and reached[same] < upper:
                best[j], parent[j] = reached[same], same
            tried = reached < best[j] if same < 0 else fresh & (reached < best[j])
            inside = _inside(below, above, j, tried)
            if len(inside):
                load = stages.load(stage, below, inside, above, j, float(best[j]))
                load = np.maximum(load, reached[inside])
                least = int(load.argmin())
                if load[least] < best[j]:
                    best[j], parent[j] = load[least], inside[least]
        known = {bits: float(reached[i]) for bits, i in here.items()}
        reached = best
        fresh = np.asarray(
            [best[j] < known.get(bits.tobytes(), np.inf) for j, bits in enumerate(above.bits)]
        )
        parents.append(parent)
    if parents[-1][0] < 0:
        return Answer(None, complete=True)
    return Answer(_traced(problem, levels, parents), complete=True)


def _positions_are_alike(problem: Problem) -> bool:
    """Whether a stage may be empty and costs the same wherever it stands.

    Then a prefix reached in s stages is reached in s + 1, and only prefixes that the last stage
    reached for the first time, or more cheaply, need be tried again.
    """
    figures = (problem.device_kind, problem.memory_limit_bytes, problem.in_flight)
    return problem.allow_empty and all(len(np.unique(figure)) == 1 for figure in figures)


def _inside(below: _Level, above: _Level, j: int, reachable: BoolArray) -> IntArray:
    """The reachable prefixes of `below` that lie inside prefix j of `above`."""
    candidates = np.flatnonzero(reachable)
    for word in range(below.bits.shape[1]):
        missing = below.bits[candidates, word] & ~above.bits[j, word]
        candidates = candidates[missing == 0]
    return candidates


class _StageLoads:
    """Loads of stages between prefixes."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        synchronised = problem.weight_sync_seconds > 0
        trips = np.zeros(len(problem.values))
        if problem.n_stages > 1:
            trips = round_trip_seconds(problem, 0, 1)
        self.cost = np.concatenate([trips, problem.weight_sync_seconds[synchronised]])
        sizes = np.concatenate(
            [np.diff(problem.values.offsets), np.diff(problem.weights.offsets)[synchronised]]
        )
        self.size = sizes.astype(np.int16)

    def load(
        self, stage: int, below: _Level, inside: IntArray, above: _Level, j: int, upper: float
    ) -> FloatArray:
        r"""Seconds of stage J \ I for each I of `inside`; infinity where it is no candidate."""
        kind = self.problem.device_kind[stage]
        load: FloatArray = above.work[kind, j] - below.work[kind, inside]
        tried = np.flatnonzero(load < upper)
        load[load >= upper] = np.inf
        taken = above.shared[j] - below.shared[inside[tried]]
        load[tried] += ((taken > 0) & (taken < self.size)) @ self.cost
        if not self.problem.allow_empty:
            load[(below.bits[inside] == above.bits[j]).all(axis=1)] = np.inf
        limit = self.problem.memory_limit_bytes[stage]
        tried = np.flatnonzero(load < upper)
        if np.isfinite(limit) and len(tried):
            memory = self._memory(stage, below, inside[tried], above, j)
            load[tried[memory > limit * LIMIT_TOLERANCE]] = np.inf
        return load

    def _memory(
        self, stage: int, below: _Level, inside: IntArray, above: _Level, j: int
    ) -> FloatArray:
        problem = self.problem
        held = (above.held[j] > below.held[inside]) @ problem.weight_bytes
        saved = (above.saved[j] > below.saved[inside]) @ problem.saved_bytes
        own = above.members[j] & ~below.members[inside]
        workspace = np.where(own, problem.workspace_bytes, 0.0).max(axis=1, initial=0.0)
        memory: FloatArray = held + saved * problem.in_flight[stage] + workspace
        return memory


def _traced(problem: Problem, levels: list[_Level], parents: list[IntArray]) -> Assignment:
    stage, index = np.zeros(problem.n, dtype=np.int64), 0
    for boundary in range(problem.n_stages - 1, 0, -1):
        index = int(parents[boundary][index])
        stage += ~levels[boundary].members[index]
    return Assignment(stage)
