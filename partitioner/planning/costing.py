"""A choice's costs: the model cut for it, its stages' seconds and bytes, a bound on its step.

Legend:  k stages, d devices, m micro-batches, n clusters, w weights.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stagecut.ir.device import Cluster
from stagecut.ir.problem import FloatArray, Incidence, IntArray, Problem, Relief
from stagecut.ir.schedule import Schedule
from stagecut.ir.solution import Assignment
from stagecut.ir.timeline import EdgeCost, Reduction, StepCosts
from stagecut.partitioner.dp import cut_order, relieved_cut
from stagecut.partitioner.evaluate import evaluate
from stagecut.partitioner.orders import orders
from stagecut.partitioner.relief import Bought
from stagecut.partitioner.schedules.flight import CHANGE, is_inference

SumSeconds = Callable[[float], float]
"""Bytes to the seconds of their sum over all replicas."""
SIZED = (
    "forward_seconds",
    "backward_seconds",
    "value_forward_bytes",
    "value_backward_bytes",
    "saved_bytes",
    "workspace_bytes",
)
"""What grows with the rows of a micro-batch."""


@dataclass(frozen=True, slots=True, eq=False)
class Costed:
    """A model's costs at one size of micro-batch."""

    problem: Problem
    """For any number of stages: `resized` sets it."""
    kinds: tuple[str, ...]
    """The names of the devices that its rows of seconds are for."""
    weight_half_seconds: FloatArray
    """Shape [n]: the part of each cluster's backward that only weights need."""
    gradient_share: float
    """Bytes of gradients over the bytes held for weights."""
    optimizer_seconds_per_byte: float = 0.0
    """The optimizer's step, for each byte held for weights."""
    relief: Relief | None = None
    """What recomputing frees and costs, where stages may recompute."""


def between(known: Mapping[int, Costed], rows: int) -> Costed | None:
    """The costs at some number of rows, by straight lines through those of others.

    Seconds and bytes are close to straight in the rows. None where there are too few others, or
    where what can be separated differs between them.
    """
    if rows in known:
        return known[rows]
    sizes = sorted(known)
    if len(sizes) < 2 or len({known[size].problem.names for size in sizes}) > 1:
        return None
    right = min(max(bisect_left(sizes, rows), 1), len(sizes) - 1)
    low, high = sizes[right - 1], sizes[right]
    a, b, share = known[low], known[high], (rows - low) / (high - low)

    def mixed(x: FloatArray, y: FloatArray) -> FloatArray:
        made: FloatArray = np.maximum(x + share * (y - x), 0.0)
        return made

    columns = {name: mixed(getattr(a.problem, name), getattr(b.problem, name)) for name in SIZED}
    relief = None
    if a.relief is not None and b.relief is not None:
        relief = Relief(
            mixed(a.relief.seconds, b.relief.seconds),
            mixed(a.relief.freed_bytes, b.relief.freed_bytes),
            mixed(a.relief.replay_bytes, b.relief.replay_bytes),
            max(0.0, (1 - share) * a.relief.grain_bytes + share * b.relief.grain_bytes),
        )
    return Costed(
        replace(a.problem, **columns),  # type: ignore[arg-type]
        a.kinds,
        mixed(a.weight_half_seconds, b.weight_half_seconds),
        a.gradient_share,
        a.optimizer_seconds_per_byte,
        relief,
    )


def resized(costed: Costed, cluster: Cluster, k: int, limit: FloatArray | None) -> Problem:
    """Its problem for k stages, stage s on device s modulo the cluster's.

    `limit`, shape [k]: bytes; None for no limit.
    """
    ranks = [stage % len(cluster.devices) for stage in range(k)]
    latency, per_byte = np.zeros((k, k)), np.zeros((k, k))
    for p, a in enumerate(ranks):
        for q, b in enumerate(ranks):
            if a != b:
                link = cluster.link(a, b)
                latency[p, q], per_byte[p, q] = link.latency_seconds, 1 / link.bytes_per_second
    return replace(
        costed.problem,
        n_stages=k,
        pins=np.where(costed.problem.pins < 0, -1, k - 1),
        device_kind=np.array([costed.kinds.index(cluster.devices[r].name) for r in ranks]),
        memory_limit_bytes=np.full(k, np.inf) if limit is None else limit,
        in_flight=np.ones(k, dtype=np.int64),
        link_latency_seconds=latency,
        link_seconds_per_byte=per_byte,
    )


def quick_cut(problem: Problem) -> IntArray | None:
    """The best cut of the program's own order; None where none is within memory.

    The plan that is made of a choice tries many more.
    """
    _, program = next(iter(orders(problem)))
    cut = cut_order(problem, program)
    return None if cut is None else cut.stage


def quick_relieved_cut(problem: Problem, relief: Relief) -> IntArray | None:
    """The same where stages may recompute."""
    _, program = next(iter(orders(problem)))
    cut = relieved_cut(problem, program, relief, fine=False)
    return None if cut is None else cut.assignment(program).stage


def step_costs(
    costed: Costed, problem: Problem, stage: IntArray, sum_seconds: SumSeconds | None
) -> StepCosts:
    """What `simulate` needs; `sum_seconds` prices the sum of gradients over a stage's copies.

    A stage that receives nothing with a gradient has no input half.
    """
    k = problem.n_stages
    evaluation = evaluate(problem, Assignment(stage))
    weight_half: FloatArray = np.zeros(k)
    np.add.at(weight_half, stage, costed.weight_half_seconds)
    backward = evaluation.backward_seconds
    edges = _edges(problem, stage)
    first = np.array(
        [not any(e.destination == s and e.backward_seconds for e in edges) for s in range(k)]
    )
    weight_half = np.where(first, backward, np.minimum(weight_half, backward))
    return StepCosts(
        forward_seconds=_floats(evaluation.forward_seconds),
        backward_seconds=_floats(backward),
        backward_input_seconds=_floats(backward - weight_half),
        backward_weight_seconds=_floats(weight_half),
        saved_bytes=_floats(evaluation.saved_bytes),
        static_bytes=_floats(evaluation.weight_bytes + evaluation.workspace_bytes),
        optimizer_seconds=_floats(evaluation.weight_bytes * costed.optimizer_seconds_per_byte),
        edges=edges,
        reductions=_reductions(costed, problem, stage, evaluation.weight_bytes, sum_seconds),
    )


def recomputing(costs: StepCosts, extra: Bought) -> StepCosts:
    """The costs of stages that recompute; such a stage has all gradients with the input half."""
    again = extra.freed_bytes > 0
    backward = np.asarray(costs.backward_seconds) + extra.seconds
    weight_half = np.where(again, 0.0, costs.backward_weight_seconds)
    return replace(
        costs,
        backward_seconds=_floats(backward),
        backward_input_seconds=_floats(backward - weight_half),
        backward_weight_seconds=_floats(weight_half),
        saved_bytes=_floats(np.maximum(costs.saved_bytes - extra.freed_bytes, 0.0)),
        static_bytes=_floats(costs.static_bytes + extra.replay_bytes),
    )


def _edges(problem: Problem, stage: IntArray) -> tuple[EdgeCost, ...]:
    forward: dict[tuple[int, int], float] = defaultdict(float)
    backward: dict[tuple[int, int], float] = defaultdict(float)
    for value in _spread(problem.values, stage):
        members = stage[problem.values[value]]
        source = int(members[0])
        for target in {int(s) for s in members} - {source}:
            pair = source, target
            latency, per_byte = problem.link_latency_seconds, problem.link_seconds_per_byte
            forward[pair] += latency[pair] + problem.value_forward_bytes[value] * per_byte[pair]
            if gradient := problem.value_backward_bytes[value]:
                backward[pair] += latency[pair] + gradient * per_byte[pair]
    return tuple(
        EdgeCost(a, b, float(forward[a, b]), float(backward[a, b])) for a, b in sorted(forward)
    )


def _spread(items: Incidence, stage: IntArray) -> list[int]:
    """The items that several stages touch."""
    if not len(items):
        return []
    where, starts = stage[items.members], items.offsets[:-1]
    differ = np.minimum.reduceat(where, starts) != np.maximum.reduceat(where, starts)
    return [int(item) for item in np.flatnonzero(differ)]


def _reductions(
    costed: Costed,
    problem: Problem,
    stage: IntArray,
    held: FloatArray,
    sum_seconds: SumSeconds | None,
) -> tuple[Reduction, ...]:
    """Sums of tied weights' gradients, then of every stage's over its replicas."""
    shared: dict[tuple[int, ...], float] = defaultdict(float)
    for weight in _spread(problem.weights, stage):
        users = tuple(sorted({int(s) for s in stage[problem.weights[weight]]}))
        shared[users] += float(problem.weight_bytes[weight]) * costed.gradient_share
    latency, per_byte = problem.link_latency_seconds, problem.link_seconds_per_byte
    made = [
        Reduction(users, 2 * float(latency.max() + n_bytes * per_byte.max()))
        for users, n_bytes in shared.items()
        if n_bytes
    ]
    if sum_seconds is not None:
        n_bytes = held * costed.gradient_share
        made += [Reduction((s,), sum_seconds(float(b))) for s, b in enumerate(n_bytes)]
    return tuple(made)


def device_bytes(schedule: Schedule, costs: StepCosts) -> FloatArray:
    """Shape [d]: the peak of each device, which depends on the order alone."""
    static, saved = np.asarray(costs.static_bytes), np.asarray(costs.saved_bytes)
    peaks = np.zeros(len(schedule.devices))
    np.add.at(peaks, list(schedule.device_of_stage), static)
    if is_inference(schedule):
        return peaks
    for device, computes in enumerate(schedule.devices):
        stages = np.fromiter((c.stage for c in computes), dtype=np.int64, count=len(computes))
        change = np.fromiter((CHANGE[c.phase] for c in computes), np.int64, len(computes))
        peaks[device] += np.cumsum(saved[stages] * change).max(initial=0.0)
    return peaks


def least_seconds(costs: StepCosts, device_of_stage: Sequence[int], m: int, halves: bool) -> float:
    """No schedule of m micro-batches on these stages takes less.

    A device computes everything of its stages, after a forward of the stages before its first and,
    where backwards are whole, before a backward of them.
    """
    owner = np.asarray(device_of_stage)
    forward, backward = np.asarray(costs.forward_seconds), np.asarray(costs.backward_seconds)
    least = 0.0
    for device in range(int(owner.max()) + 1):
        mine = owner == device
        first = int(np.argmax(mine))
        around = forward[:first].sum() + (0.0 if halves else backward[:first].sum())
        least = max(least, m * float((forward + backward)[mine].sum()) + float(around))
    return least


def _floats(column: FloatArray) -> tuple[float, ...]:
    return tuple(float(x) for x in column)
