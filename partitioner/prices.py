"""The least that a stage pays for a value, given the stages that its other ends may be in.

Legend:  k stages, v values; the window of a cluster: the stages low..high that it may be in.

A stage that receives a value pays at least the cheapest round trip with a stage in its producer's
window. A stage that makes one pays at least the cheapest with a stage in a user's window; and users
whose windows do not overlap are in different stages, each of which it sends to where every consumer
is sent to. Position biases and encoder outputs, which many stages use, cost their maker most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray, Problem
from stagecut.partitioner.evaluate import round_trip_seconds

_FEW_USERS = 2
"""Values with more are used by many layers."""


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """By stage and value, shape [k, v] each; 0 where nothing is known to be paid."""

    entering: FloatArray
    leaving: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """The stages low..high [n] that each cluster may be in, and what that makes stages pay."""

    low: IntArray
    high: IntArray
    paid: Prices


def windows_with_prices(
    problem: Problem, low: IntArray, high: IntArray, unit_seconds: float
) -> Windows:
    """Windows with their prices in units of `unit_seconds`."""
    paid = _prices(problem, low, high)
    in_units = Prices(paid.entering / unit_seconds, paid.leaving / unit_seconds)
    return Windows(low, high, in_units)


def with_relays(problem: Problem, windows: Windows) -> Windows:
    """The same with values of many users at their cheapest trip, wherever they come from.

    A stage may get such a value's worth from one near by, which makes for it what it would make
    itself: charged less, those side branches cost no more apart than joined to their users.
    """
    entering = windows.paid.entering
    many = np.diff(problem.values.offsets) > _FEW_USERS + 1
    nearest = np.where(entering > 0, entering, np.inf).min(axis=0, initial=np.inf)
    relayed = np.where(many, np.minimum(entering, nearest), entering)
    return replace(windows, paid=replace(windows.paid, entering=relayed))


def _prices(problem: Problem, low: IntArray, high: IntArray) -> Prices:
    """Seconds, where cluster c is in stages low[c]..high[c]."""
    arriving, sent = _Trips(problem, inward=True), _Trips(problem, inward=False)
    heads = problem.values.members[problem.values.offsets[:-1]]
    each = np.arange(len(problem.values))
    value = np.repeat(each, np.diff(problem.values.offsets) - 1)
    is_user = np.ones(len(problem.values.members), dtype=bool)
    is_user[problem.values.offsets[:-1]] = False
    user = problem.values.members[is_user]
    k = problem.n_stages
    entering, leaving = np.zeros((k, len(each))), np.zeros((k, len(each)))
    of_user = np.zeros((k, len(user)))
    for s in range(k):
        entering[s] = arriving.cheapest(s, each, low[heads], np.minimum(high[heads], s - 1))
        of_user[s] = sent.cheapest(s, value, np.maximum(low[user], s + 1), high[user])
        leaving[s] = np.inf
        np.minimum.at(leaving[s], value, of_user[s])
    entering[~np.isfinite(entering)] = 0.0
    leaving[~np.isfinite(leaving)] = 0.0
    of_user[~np.isfinite(of_user)] = 0.0
    if problem.send_rule == "per_consumer":
        _add_sends(leaving, of_user, value, low[user], high[user])
    return Prices(entering, leaving)


def _add_sends(
    leaving: FloatArray, of_user: FloatArray, value: IntArray, low: IntArray, high: IntArray
) -> None:
    """Raises `leaving` to what sends to users that are surely apart cost together."""
    starts = np.flatnonzero(np.diff(value, prepend=-1))
    stages = np.arange(len(leaving))[:, None]
    stops = np.append(starts[1:], len(value))[: len(starts)]
    for start, stop in zip(starts, stops, strict=True):
        if stop - start < 2:
            continue
        apart, first = [], np.iinfo(np.int64).max
        for user in start + np.argsort(-low[start:stop], kind="stable"):
            if high[user] < first:
                apart.append(user)
                first = low[user]
        together = (of_user[:, apart] * (low[apart] > stages)).sum(axis=1)
        leaving[:, value[start]] = np.maximum(leaving[:, value[start]], together)


class _Trips:
    """Round trips of every value over each of the few kinds of link that there are.

    From a stage and back, or where `inward` to it and back.
    """

    def __init__(self, problem: Problem, inward: bool) -> None:
        k = problem.n_stages
        latency, per_byte = problem.link_latency_seconds, problem.link_seconds_per_byte
        both_ways = np.stack([latency, per_byte, latency.T, per_byte.T], axis=-1)
        off_diagonal = ~np.eye(k, dtype=bool)
        found, first, kind = np.unique(
            both_ways[off_diagonal], axis=0, return_index=True, return_inverse=True
        )
        pairs = np.argwhere(off_diagonal)
        own, other = pairs.T[::-1] if inward else pairs.T
        self.seconds = np.stack([round_trip_seconds(problem, *pairs[i].tolist()) for i in first])
        """Shape [kinds, v]."""
        present = np.zeros((len(found), k, k + 1), dtype=np.int64)
        present[kind.ravel(), own, other + 1] = 1
        self._up_to = np.cumsum(present, axis=2)
        """Shape [kinds, k, k + 1]: links of each kind from a stage to the stages before another."""

    def cheapest(self, stage: int, value: IntArray, low: IntArray, high: IntArray) -> FloatArray:
        """Seconds of the cheapest trip of each value with a stage in low..high; infinity if none.

        Shape [m], for values, low and high of shape [m].
        """
        least = np.full(len(value), np.inf)
        some = high >= low
        start, stop = np.where(some, low, 0), np.where(some, high + 1, 0)
        for kind, seconds in enumerate(self.seconds):
            has = some & (self._up_to[kind, stage, stop] > self._up_to[kind, stage, start])
            np.minimum(least, seconds[value], out=least, where=has)
        return least
