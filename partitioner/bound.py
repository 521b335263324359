"""What no assignment can beat: the binned minimum-cut bound. The proof is in docs/lower-bound.md.

Legend:  k stages, n clusters, B bins; prefix: what is in the first s stages.

Every boundary between stages is a prefix, and its work falls into one of B bins (bins.py). Whether
an assignment can keep every load within a limit is decided by a dynamic programme over bins
(reach.py), which is more generous than the truth. Where it says no, the limit is a lower bound.

A bin that no boundary may be in is dropped, the others are split, until the limit is refuted or the
budget ends. What is left to each boundary tells which clusters are surely before and after it:
windows, which make the exact search small. In them, graphs that are nearly chains are bounded once
more, by all their prefixes (chains.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray, Problem
from stagecut.partitioner.bins import Bins
from stagecut.partitioner.chains import chain_bound
from stagecut.partitioner.crossings import Crossings
from stagecut.partitioner.memory_bound import memory_share
from stagecut.partitioner.orders import narrowed
from stagecut.partitioner.reach import Paths, Reach
from stagecut.partitioner.surcharges import surcharges

SAFETY = 1 - 1e-9
"""Bounds are lowered by this, so that rounding never makes one exceed the optimum."""
_SPLIT_AT_ONCE = 150
_LEAST_BINS, MOST_BINS, _BINS_PER_STAGE, _WORK = 600, 2400, 150, 5_000_000
"""Bins ever computed, the budget: so many a stage, `_WORK` over the clusters at most, and between
the first two."""
_NARROWEST = 1e-5
_GAIN, _PATIENCE = 0.01, 3
"""Rounds without this gain that end the splitting: the share of what is left to all boundaries."""
_SHOWN_FROM = 4
"""Times as many bins as at the last look at all prefixes are worth another."""
_ROUNDS = 4
"""Times that windows raise prices which narrow windows, at each look."""
_NARROWER = 0.97
"""Windows this much narrower in all than at the last look at all prefixes are worth another."""
_BELOW = 1 - 1e-8
"""Assignments closer to the target than this do not count as better."""
_RESOLUTION = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A lower bound, and what it takes to stay below the target that it was computed for."""

    seconds: float
    target_seconds: float
    low: IntArray
    """Shape [n]: the first stage a cluster is in, in any assignment below the target."""
    high: IntArray
    """Shape [n]: the last. Where low > high, there is no such assignment."""
    stage: IntArray | None = None
    """Shape [n]: stages that are as good as the bound says by its own, more generous, count; None
    where it has none."""


def simple_bound(problem: Problem) -> float:
    """The larger of the mean load and the largest cluster, in O(t n)."""
    seconds = problem.forward_seconds + problem.backward_seconds
    largest = _on_its_stage(problem, seconds).max(initial=0.0)
    return max(_mean_load(problem, seconds), float(largest)) * SAFETY


def lower_bound(
    problem: Problem,
    upper: float,
    gap: float,
    out_of_time: Callable[[], bool],
    most_bins: int = MOST_BINS,
    crossings: Crossings | None = None,
) -> Bound:
    """The bound against an incumbent of bottleneck `upper`, refined until within `gap` of it.

    `gap` 0 refines as long as splitting bins helps; no more than `most_bins` are ever computed.
    `crossings`, those of this problem, keep what they find from one bound to the next.
    Non-empty stages are ignored, pins only narrow windows, memory counts what a stage surely has,
    sends are charged as under the rule "once" unless windows show more: all lower than the truth at
    worst.
    """
    k, target = problem.n_stages, upper / (1 + gap)
    low, high = np.zeros(problem.n, dtype=np.int64), np.full(problem.n, k - 1)
    if k == 1 or target <= 0:
        return Bound(0.0, target, low, high)
    share, stage, open_before = 0.0, None, np.inf
    bins = Bins(crossings or Crossings(problem), target)
    for reach in _refinements(bins, most_bins, out_of_time):
        low, high = _both((low, high), _priced_windows(problem, bins, reach))
        if (low <= high).all() and (high - low).sum() < open_before * _NARROWER:
            chain = chain_bound(problem, bins.relaxed, target, low, high, out_of_time)
            share, low, high = max(share, chain.share), chain.low, chain.high
            stage = stage if chain.stage is None else chain.stage
            open_before = float((high - low).sum())
        if (low > high).any():
            return Bound(target * SAFETY, target, low, high)
    if not out_of_time():
        share = max(share, memory_share(bins.relaxed, target, low, high))
    if share >= 1:
        return Bound(target * SAFETY, target, low, np.full_like(high, -1))
    share = _least_limit(bins, share)
    return Bound(share * target * SAFETY, target, low, high, stage)


def _both(
    one: tuple[IntArray, IntArray], other: tuple[IntArray, IntArray]
) -> tuple[IntArray, IntArray]:
    """The windows that two proofs leave together."""
    return np.maximum(one[0], other[0]), np.minimum(one[1], other[1])


def _priced_windows(problem: Problem, bins: Bins, reach: Reach) -> tuple[IntArray, IntArray]:
    """The windows that `reach` leaves, narrowed by what they make stages pay, while that helps."""
    low, high = narrowed(problem, *_windows(bins, reach))
    for _ in range(_ROUNDS if len(bins.relaxed.raisable) else 0):
        if (low > high).any():
            break
        bins.charge(surcharges(problem, bins.relaxed, low, high))
        reach = Paths(bins).reach(bins.target_seconds * _BELOW)
        before = int((high - low).sum())
        low, high = narrowed(problem, *_windows(bins, reach))
        if int((high - low).sum()) > before * (1 - _GAIN):
            break
    return low, high


def _refinements(bins: Bins, most_bins: int, out_of_time: Callable[[], bool]) -> Iterator[Reach]:
    """Splits bins until the target is refuted or nothing is gained; yields a few times."""
    wanted = min(_BINS_PER_STAGE * bins.relaxed.n_stages, _WORK // len(bins.before))
    budget = min(max(_LEAST_BINS, wanted), most_bins)
    spent, stalled, left, shown = len(bins), 0, np.inf, 0
    while True:
        reach = Paths(bins).reach(bins.target_seconds * _BELOW)
        now = _left(reach)
        stalled = stalled + 1 if now > left * (1 - _GAIN) else 0
        left = min(left, now)
        width = np.where(reach.alive.any(axis=0), bins.hi - bins.lo, 0.0)
        widest = np.argsort(-width, kind="stable")[:_SPLIT_AT_ONCE]
        split = np.zeros(len(bins), dtype=bool)
        split[widest] = width[widest] > _NARROWEST * bins.target_seconds
        last = not reach.possible or stalled > _PATIENCE or not split.any()
        last = last or spent + 2 * int(np.count_nonzero(split)) > budget or out_of_time()
        if last or spent >= _SHOWN_FROM * shown:
            shown = spent
            yield reach
        if last:
            return
        spent += 2 * int(np.count_nonzero(split))
        bins.split(width > 0, split)


def _left(reach: Reach) -> float:
    """The work left open to all boundaries together."""
    return float(np.where(reach.alive, reach.most - reach.least, 0.0).sum())


def _least_limit(bins: Bins, refuted: float) -> float:
    """The greatest limit that is refuted, to a resolution, and what is already, as shares."""
    paths, open_ = Paths(bins), 1.0
    while open_ - refuted > _RESOLUTION:
        middle = (refuted + open_) / 2
        if paths.possible(middle * bins.target_seconds):
            open_ = middle
        else:
            refuted = middle
    return refuted


def _windows(bins: Bins, reach: Reach) -> tuple[IntArray, IntArray]:
    """The first and the last stage [n] that what is left to the boundaries leaves each cluster."""
    least = np.where(reach.alive, reach.least, np.inf).min(axis=1, initial=np.inf)
    most = np.where(reach.alive, reach.most, -np.inf).max(axis=1, initial=-np.inf)
    surely_in = bins.total - bins.after < least[:, None] - bins.slack
    surely_out = bins.before > most[:, None] + bins.slack
    return surely_out.sum(axis=0), len(least) - surely_in.sum(axis=0)


def _mean_load(problem: Problem, seconds: FloatArray) -> float:
    """Work over devices, for devices that differ.

    For any weights y over the stages with sum 1, the bottleneck is at least the weighted mean of
    the loads, and that at least the sum over clusters of the least y_s * seconds on s. Weights in
    proportion to speed make it tight where one kind is as much faster for every cluster.
    """
    work = seconds.sum(axis=1)[problem.device_kind]
    if not work.all():
        return 0.0
    weight = (1 / work) / (1 / work).sum()
    kinds = np.unique(problem.device_kind)
    least = np.asarray([weight[problem.device_kind == kind].min() for kind in kinds])
    return float((least[:, None] * seconds[kinds]).min(axis=0).sum())


def _on_its_stage(problem: Problem, seconds: FloatArray) -> FloatArray:
    """Seconds [n] of each cluster on the best device its pin allows."""
    best = seconds[np.unique(problem.device_kind)].min(axis=0)
    pinned = problem.pins >= 0
    kind = problem.device_kind[problem.pins]
    return np.where(pinned, seconds[kind, np.arange(problem.n)], best)
