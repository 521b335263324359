r"""A lower bound for graphs that are nearly chains: all their prefixes, and the ways through.

Legend:  k stages, I and J prefixes of two boundaries in a row, S = J \ I the stage between them;
w work, X[I, e] whether value e crosses I: made in it, used outside; in[e], out[e] what a stage pays
at least for it (prices.py); d[I] the credits of the roots in I (sidings.py); T the limit.

    load    = w(J) - w(I) + in . X[I] + out . X[J]
              - sum of out[e] over the e that cross both      they are not made in S
              - sum of in[e] over those with no user in S
    bank[J] = max over I inside J with load <= T of  bank[I] + T - load - (d[J] - d[I]),
              no more than can be paid ahead, and no way if that is below 0

All loads between two boundaries are a few matrix products. Side branches are joined to their users
first, the fewest that leave few enough prefixes; the bank is what may have been paid ahead for
them. After Tarnawski et al. (NeurIPS 2020), whose programme over prefixes is exact; here every
stage is charged the least that the windows of the clusters allow, so that what comes out is a bound
where links differ, or where a maker pays for each of its consumers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray, Problem
from stagecut.partitioner.orders import narrowed
from stagecut.partitioner.prefix_loads import Crossing, loads_between
from stagecut.partitioner.prefixes import Level, levels_of
from stagecut.partitioner.prices import Windows, windows_with_prices, with_relays
from stagecut.partitioner.relaxed import Relaxed
from stagecut.partitioner.sidings import Joined, joined

_LOSSES = (0.0, 2e-4, 5e-4, 1e-3, 2e-3, 3e-3, 4e-3, 6e-3, 8e-3, 1.2e-2, 2e-2, 3e-2)
"""The most that joining one side branch may lose, as shares of the target."""
_MOST_CLUSTERS = 6_000
_ROUNDS, _NARROWER = 12, 0.98
"""Rounds at most, and by how much each has to narrow all windows together for another."""
_RESOLUTION = 1e-3
_SLACK = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class ChainBound:
    """What is known of assignments below the target."""

    share: float
    """The bound as a share of the target; 0 where the graph has too many prefixes."""
    low: IntArray
    """Shape [n]: the first stage of each cluster."""
    high: IntArray
    """Shape [n]: the last; somewhere below `low` where there is no such assignment."""
    stage: IntArray | None = None
    """Shape [n]: a way through at the bound, worth trying; None where there is none below it."""


def chain_bound(
    problem: Problem,
    relaxed: Relaxed,
    target_seconds: float,
    low: IntArray,
    high: IntArray,
    out_of_time: Callable[[], bool],
) -> ChainBound:
    """The bound for assignments below the target with stages low..high [n].

    What is left to the boundaries narrows the windows, which raises prices, until that ends.
    """
    chain, losses = None, range(len(_LOSSES))
    work = relaxed.work / target_seconds
    for _ in range(_ROUNDS if problem.n <= _MOST_CLUSTERS else 0):
        if out_of_time():
            break
        windows = windows_with_prices(problem, low, high, target_seconds)
        found = _finest(problem, work, relaxed.slowdown, windows, losses, out_of_time)
        if found is None:
            break
        chain, finest = found
        losses = range(max(finest - 1, 0), finest + 1)  # narrower windows allow little finer ones
        left = chain.windows(low, high)
        if left is None:
            return ChainBound(1.0, low, np.full_like(high, -1))
        narrower = narrowed(problem, *left)
        before, now = int((high - low).sum()), int((narrower[1] - narrower[0]).sum())
        low, high = narrower
        if now > before * _NARROWER:
            break
    if chain is None:
        return ChainBound(0.0, low, high)
    share = chain.least_limit()
    stage = _with_users(problem, *chain.way(share + 2 * _RESOLUTION))
    return ChainBound(share, low, high, stage)


def _with_users(problem: Problem, root: IntArray, stage_of_root: IntArray) -> IntArray:
    """Shape [n]: the stages of the roots, and of all others that of their first user."""
    stage = np.full(problem.n, problem.n_stages)
    stage[root] = stage_of_root
    is_root = np.isin(np.arange(problem.n), root)
    for a, b in problem.edges[np.argsort(-problem.edges[:, 0], kind="stable")].tolist():
        if not is_root[a]:
            stage[a] = min(stage[a], stage[b])
    return stage.clip(max=problem.n_stages - 1)


def _finest(
    problem: Problem,
    work: FloatArray,
    slowdown: FloatArray,
    windows: Windows,
    losses: range,
    out_of_time: Callable[[], bool],
) -> tuple[_Chain, int] | None:
    """The chain with the fewest side branches joined, and which of `_LOSSES` allows it.

    At the prices of the windows, or if even the greatest loss leaves too many prefixes then, with
    relays at the price of the nearest; None if that is as bad.
    """

    def tried(priced: Windows, loss: int) -> tuple[Joined, list[Level]] | None:
        graph = joined(problem, priced, work, slowdown, _LOSSES[loss])
        levels = levels_of(graph, windows.low[graph.root], windows.high[graph.root])
        return None if levels is None else (graph, levels)

    for priced in (windows, with_relays(problem, windows)):
        few, many = losses[-1], losses[0] - 1
        found = tried(priced, few)
        while found is not None and few - many > 1 and not out_of_time():
            middle = (few + many) // 2
            finer = tried(priced, middle)
            found, few, many = (found, few, middle) if finer is None else (finer, middle, many)
        if found is not None:
            return _Chain(*found, slowdown), few
    return None


class _Chain:
    """The loads of all stages between prefixes, and the ways through them."""

    def __init__(self, graph: Joined, levels: list[Level], slowdown: FloatArray) -> None:
        self.graph, self.levels = graph, levels
        ends = [Crossing.of(graph, level) for level in levels]
        self.loads = [
            loads_between(graph, stage, float(slowdown[stage]), *ends[stage : stage + 2])
            for stage in range(len(levels) - 1)
        ]
        self.credit = [level.sums(graph.credit[-1]) for level in levels]
        rows = graph.credit
        self.ahead = [row.sum() - level.sums(row) for level, row in zip(levels, rows, strict=True)]
        """Shape [L] a level: what may have been paid ahead at most."""

    def least_limit(self) -> float:
        """The greatest limit below 1 that is refuted, to a resolution."""
        refuted, open_ = 0.0, 1.0
        while open_ - refuted > _RESOLUTION:
            middle = (refuted + open_) / 2
            refuted, open_ = (refuted, middle) if self._possible(middle) else (middle, open_)
        return refuted

    def windows(self, low: IntArray, high: IntArray) -> tuple[IntArray, IntArray] | None:
        """`low` and `high` [n], narrowed for the roots to what prefixes on ways through have.

        None where there is no way through within the target.
        """
        low, high, root = low.copy(), high.copy(), self.graph.root
        most = self._most(1.0)
        if len(most) <= len(self.loads):
            return None
        least = self._least(1.0)
        for boundary in range(1, len(self.levels) - 1):
            level = self.levels[boundary]
            alive = level.members[most[boundary] >= least[boundary] - _SLACK]
            always, never = (
                root[level.free[alive.all(axis=0)]],
                root[level.free[~alive.any(axis=0)]],
            )
            high[always] = np.minimum(high[always], boundary - 1)
            low[never] = np.maximum(low[never], boundary)
        return low, high

    def way(self, limit: float) -> tuple[IntArray, IntArray]:
        """The roots [m], and the stage [m] of each on a way within `limit`."""
        banks, at = self._most(limit), 0
        stage_of_root = np.zeros(len(self.graph.root), dtype=np.int64)
        for stage in range(len(self.loads) - 1, 0, -1):
            at = int((banks[stage] + self._spare(stage, limit)[:, at]).argmax())
            level = self.levels[stage]
            has = level.inside.copy()
            has[level.free] = level.members[at] > 0
            stage_of_root += ~has
        return self.graph.root, stage_of_root

    def _possible(self, limit: float) -> bool:
        return len(self._most(limit)) > len(self.loads)

    def _spare(self, stage: int, limit: float) -> FloatArray:
        """Shape [L, L']: what each stage adds to the bank; minus infinity where it is no way."""
        load, credit = self.loads[stage], self.credit
        spare = limit - load - (credit[stage + 1][None, :] - credit[stage][:, None])
        return np.where(load <= limit + _SLACK, spare, -np.inf)

    def _most(self, limit: float) -> list[FloatArray]:
        """The most in the bank at each prefix, level by level, as far as there is a way.

        Minus infinity where there is no way to the prefix.
        """
        banks = [np.zeros(1)]
        for stage in range(len(self.loads)):
            bank = (banks[-1][:, None] + self._spare(stage, limit)).max(axis=0, initial=-np.inf)
            bank = np.minimum(bank, self.ahead[stage + 1])
            reached = bank >= -_SLACK
            if not reached.any():
                break
            banks.append(np.where(reached, bank, -np.inf))
        return banks

    def _least(self, limit: float) -> list[FloatArray]:
        """The least that must be in the bank for a way to the end; infinity where there is none."""
        needs = [np.zeros(1)]
        for stage in range(len(self.loads) - 1, -1, -1):
            need = (needs[-1][None, :] - self._spare(stage, limit)).min(axis=1, initial=np.inf)
            needs.append(np.maximum(need, 0.0))
        return needs[::-1]
