"""The problem that the lower bound is proved for: every cost at or below the real one.

Legend:  n clusters, v items, s stages, h an item's head.

Work is that of the fastest kind of device used; a stage on another kind does at least `slowdown`
times as much. An item costs its cheapest round trip between a stage and those before it, or those
after it, paid once by every stage that touches it and not all of it. Items are values and
synchronised weights.

Two charges may never count one stage's payment for one item twice. Where an item's head precedes
all its other members, "h before the stage, another in it" and "h in the stage, another after it"
exclude each other; likewise mirrored where the head comes last. Any other item is charged only for
its head lying outside the stage, before or after.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagecut.ir.problem import FloatArray, Incidence, IntArray, Problem
from stagecut.partitioner.arrays import BoolArray, sums
from stagecut.partitioner.cuts import Pairs

_MEMORY_SLACK = 1 + 1e-9
_MOST_RAISABLE, _WORTH_RAISING = 256, 1e-3
"""Values whose prices may be raised at most, and the share of a mean stage it must come to."""
_MOST_PRICES = 3
"""Where links differ by more, every item has its least cost everywhere."""


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """A relaxed problem; times are in seconds."""

    n_stages: int
    edges: IntArray
    """Shape [e, 2], each once."""
    work: FloatArray
    """Shape [n]."""
    slowdown: FloatArray
    """Shape [k]: least ratio of a cluster's time at each stage position to its `work`."""
    costs: FloatArray
    """Shape [prices, items]: of each item, at each of a few prices."""
    entering_price: IntArray
    """Shape [k]: the row of `costs` that a stage at each position pays at least at its first
    boundary: the cheapest link with a stage before it."""
    leaving_price: IntArray
    """Shape [k]: the same at its last boundary, of the links with the stages after it."""
    entering: Pairs
    """What a stage may pay for at its first boundary."""
    leaving: Pairs
    """What a stage may pay for at its last."""
    raisable: IntArray
    """Shape [raisable]: values, ascending, for which some stage may pay far more than `costs`."""
    memory: Memory | None
    """None where no stage has a limit."""


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """What each cluster brings to its stage at least: an item is brought by one of its members."""

    held_bytes: FloatArray
    """Shape [n]: weights, for the whole step."""
    saved_bytes: FloatArray
    """Shape [n]: of a micro-batch in flight."""
    workspace_bytes: FloatArray
    """Shape [n]: a stage needs the largest."""
    in_flight: FloatArray
    """Shape [k]."""
    limit_bytes: FloatArray
    """Shape [k], with a slack for rounding."""

    def exceeded(
        self, stage: int, held: FloatArray, saved: FloatArray, workspace: FloatArray
    ) -> BoolArray:
        """Whether a stage at position `stage` that has at least this does not fit."""
        needed = held + saved * self.in_flight[stage] + workspace
        over: BoolArray = needed > self.limit_bytes[stage]
        return over


def relax(problem: Problem) -> Relaxed:
    """The relaxation of `problem`."""
    edges = np.unique(problem.edges, axis=0)
    seconds = problem.forward_seconds + problem.backward_seconds
    work = seconds[np.unique(problem.device_kind)].min(axis=0)
    counted = work > 0
    ratio = (seconds[:, counted] / work[counted]).min(axis=1, initial=np.inf)
    slowdown = np.where(np.isfinite(ratio), ratio, 1.0)[problem.device_kind]
    costs, price = np.unique(_cheapest_trips(problem), axis=0, return_inverse=True)
    if len(costs) > _MOST_PRICES:
        costs, price = costs.min(axis=0)[None], np.zeros_like(price)
    price = price.reshape(2, problem.n_stages)
    entering, leaving = _pairs(problem)
    memory = _memory(problem) if np.isfinite(problem.memory_limit_bytes).any() else None
    return Relaxed(
        problem.n_stages,
        edges,
        work,
        slowdown,
        costs,
        price[0],
        price[1],
        entering,
        leaving,
        _raisable(problem, float(work.sum()) / problem.n_stages),
        memory,
    )


def _raisable(problem: Problem, mean_seconds: float) -> IntArray:
    """The values that a stage may pay most for beyond the cheapest trip: far, or to many stages."""
    cheapest, dearest = np.full(len(problem.values), np.inf), np.zeros(len(problem.values))
    for link in _distinct_links(problem):
        trip = _trip_seconds(problem, link)
        np.minimum(cheapest, trip, out=cheapest)
        np.maximum(dearest, trip, out=dearest)
    trips = np.minimum(np.diff(problem.values.offsets) - 1, problem.n_stages - 1)
    raised = np.where(trips > 1, dearest * trips - cheapest, 0.0)
    most = np.argsort(-raised, kind="stable")[:_MOST_RAISABLE]
    return np.sort(most[raised[most] > _WORTH_RAISING * mean_seconds])


def _memory(problem: Problem) -> Memory:
    return Memory(
        _by_first_member(problem.weights, problem.weight_bytes, problem.n),
        _by_first_member(problem.saved, problem.saved_bytes, problem.n),
        problem.workspace_bytes,
        problem.in_flight.astype(np.float64),
        problem.memory_limit_bytes * _MEMORY_SLACK,
    )


def _by_first_member(items: Incidence, size: FloatArray, n: int) -> FloatArray:
    """Shape [n]: each item's size, counted for its first member alone."""
    occupied = np.diff(items.offsets) > 0
    return sums(items.members[items.offsets[:-1][occupied]], size[occupied], n)


def _cheapest_trips(problem: Problem) -> FloatArray:
    """Shape [2 k, items]: seconds of the least round trip with a stage before each, after each.

    Where there is none, the least of all. Of a weight, its gradient's sum.
    """
    k, n_values = problem.n_stages, len(problem.values)
    least = np.full((2 * k, n_values), np.inf)
    seen: dict[bytes, FloatArray] = {}
    for source in range(k):
        for target in range(k):
            if source == target:
                continue
            link = _round_trip(problem, source, target)
            trip = seen.setdefault(link.tobytes(), _trip_seconds(problem, link))
            for stage, other in ((source, target), (target, source)):
                row = stage if other < stage else k + stage
                np.minimum(least[row], trip, out=least[row])
    alone = ~np.isfinite(least).all(axis=1) if n_values else np.zeros(2 * k, dtype=bool)
    least[alone] = least.min(axis=0)
    sync = np.broadcast_to(problem.weight_sync_seconds, (2 * k, len(problem.weights)))
    return np.concatenate([least, sync], axis=1)


def _distinct_links(problem: Problem) -> list[FloatArray]:
    """The distinct links between two stages."""
    k = problem.n_stages
    links = [_round_trip(problem, *ends) for ends in np.argwhere(~np.eye(k, dtype=bool)).tolist()]
    return list({link.tobytes(): link for link in links}.values())


def _round_trip(problem: Problem, source: int, target: int) -> FloatArray:
    """Latency and seconds a byte there, then back."""
    latency, per_byte = problem.link_latency_seconds, problem.link_seconds_per_byte
    there, back = (source, target), (target, source)
    return np.asarray([latency[there], per_byte[there], latency[back], per_byte[back]])


def _trip_seconds(problem: Problem, link: FloatArray) -> FloatArray:
    """Seconds [v] of each value's activation there and gradient back."""
    there, back = problem.value_forward_bytes, problem.value_backward_bytes
    returned = np.where(back > 0, link[2] + back * link[3], 0.0)
    seconds: FloatArray = link[0] + there * link[1] + returned
    return seconds


def _pairs(problem: Problem) -> tuple[Pairs, Pairs]:
    """Pairs of every item's head with its other members, at a stage's first and last boundary."""
    synchronised = problem.weight_sync_seconds > 0
    item, head, other = _memberships(problem.values, np.ones(len(problem.values), dtype=bool))
    items, heads, others = _memberships(problem.weights, synchronised)
    item = np.concatenate([item, items + len(problem.values)])
    head, other = np.concatenate([head, heads]), np.concatenate([other, others])
    n_items = len(problem.values) + len(problem.weights)
    head_is_first = _edge_in_all(problem, item, head, other, n_items)
    head_is_last = _edge_in_all(problem, item, other, head, n_items)
    return (
        _oriented(item, head, other, (head_is_first | ~head_is_last)[item]),
        _oriented(item, head, other, head_is_first[item]),
    )


def _memberships(items: Incidence, wanted: BoolArray) -> tuple[IntArray, IntArray, IntArray]:
    """Item, head and member of every membership but the heads' own, of the wanted items."""
    item = np.repeat(np.arange(len(items)), np.diff(items.offsets))
    head = items.members[items.offsets[:-1][item]]
    kept = wanted[item] & (items.members != head)
    return item[kept], head[kept], items.members[kept]


def _edge_in_all(
    problem: Problem, item: IntArray, first: IntArray, second: IntArray, n_items: int
) -> BoolArray:
    """Shape [items]: whether an edge runs from first to second in each of the item's pairs."""
    keys = problem.edges[:, 0] * problem.n + problem.edges[:, 1]
    lacking = ~np.isin(first * problem.n + second, keys)
    complete: BoolArray = np.bincount(item, lacking, minlength=n_items) == 0
    return complete


def _oriented(item: IntArray, head: IntArray, other: IntArray, head_first: BoolArray) -> Pairs:
    return Pairs(
        item, np.where(head_first, head, other), np.where(head_first, other, head), head_first
    )
