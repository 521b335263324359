"""The definition of a stage load written out plainly, and every assignment tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product

import numpy as np

from stagecut.ir.problem import Problem


def loads(p: Problem, stage: Sequence[int]) -> list[float]:
    """The load of each stage, term by term as the definition reads."""
    load = [0.0] * p.n_stages
    for c, s in enumerate(stage):
        kind = p.device_kind[s]
        load[s] += p.forward_seconds[kind, c] + p.backward_seconds[kind, c]
    for v in range(len(p.values)):
        producer, *consumers = p.values[v]
        home = stage[producer]
        others = {stage[c] for c in consumers} - {home}
        there = {q: _move(p, home, q, p.value_forward_bytes[v]) for q in others}
        gradient = p.value_backward_bytes[v]
        back = {q: _move(p, q, home, gradient) if gradient > 0 else 0.0 for q in others}
        for q in others:
            load[q] += there[q] + back[q]
        if others and p.send_rule == "once":
            load[home] += max(there.values()) + max(back.values())
        elif others:
            load[home] += sum(there.values()) + sum(back.values())
    for w in range(len(p.weights)):
        holders = {stage[c] for c in p.weights[w]}
        for s in holders if len(holders) > 1 else ():
            load[s] += p.weight_sync_seconds[w]
    return load


def memory(p: Problem, stage: Sequence[int]) -> list[float]:
    """The peak bytes of each stage."""
    peak = []
    for s in range(p.n_stages):
        mine = {c for c in range(p.n) if stage[c] == s}
        held = sum(p.weight_bytes[w] for w in range(len(p.weights)) if mine & set(p.weights[w]))
        saved = sum(p.saved_bytes[i] for i in range(len(p.saved)) if mine & set(p.saved[i]))
        workspace = max((p.workspace_bytes[c] for c in mine), default=0.0)
        peak.append(held + saved * p.in_flight[s] + workspace)
    return peak


def valid(p: Problem, stage: Sequence[int]) -> bool:
    """Whether every constraint holds."""
    return (
        all(stage[a] <= stage[b] for a, b in p.edges)
        and all(pin in (-1, s) for pin, s in zip(p.pins, stage, strict=True))
        and (p.allow_empty or set(stage) == set(range(p.n_stages)))
        and all(m <= limit for m, limit in zip(memory(p, stage), p.memory_limit_bytes, strict=True))
    )


def valid_assignments(p: Problem) -> Iterator[tuple[int, ...]]:
    """Every assignment that breaks no constraint."""
    return (s for s in product(range(p.n_stages), repeat=p.n) if valid(p, s))


def optimum(p: Problem) -> float:
    """The least bottleneck of all valid assignments, infinity if there is none."""
    return min((max(loads(p, s)) for s in valid_assignments(p)), default=float("inf"))


def contiguous(p: Problem, order: Sequence[int]) -> Iterator[list[int]]:
    """Every cut of one order into n_stages non-empty intervals."""
    for cuts in combinations(range(1, p.n), p.n_stages - 1):
        stage = [0] * p.n
        for position, cluster in enumerate(order):
            stage[cluster] = int(np.searchsorted(cuts, position, side="right"))
        yield stage


def _move(p: Problem, source: int, destination: int, size: float) -> float:
    latency = p.link_latency_seconds[source, destination]
    return float(latency + size * p.link_seconds_per_byte[source, destination])
