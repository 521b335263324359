"""Bins of prefix weights, and the least that crosses a boundary whose prefix lies in each.

Legend:  B bins; prefix: what is in the first s stages; g a level: stage work surely above it.

Items that surely cross in every prefix of a bin are in m_in and m_out (crossings.py) at a fixed
price, the cheapest of any assignment. Windows may show that a stage pays more for them
(surcharges.py): it is added.
"""

from __future__ import annotations

import numpy as np

from stagecut.ir.problem import FloatArray, IntArray
from stagecut.partitioner.arrays import BoolArray
from stagecut.partitioner.crossings import Crossings
from stagecut.partitioner.surcharges import Surcharges

_LEVELS = (0.0, 0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.97, 1.0)
_FIRST_BINS = 96


class Bins:
    """Bins with their least crossings for one target, in seconds."""

    def __init__(self, crossings: Crossings, target_seconds: float) -> None:
        """Starts with a few of one width."""
        self.relaxed, self._source = crossings.relaxed, crossings
        self.target_seconds = target_seconds
        self.before, self.after = crossings.before, crossings.after
        self.total, self.slack = crossings.total, crossings.slack
        self.levels = np.asarray(_LEVELS) * min(target_seconds, self.total)
        self._surcharges: Surcharges | None = None
        ends = np.linspace(0.0, self.total, _FIRST_BINS + 1)
        self.lo, self.hi = ends[:-1], ends[1:]
        self.crossings, self._sure_from = crossings.least(self.lo, self.hi, self.levels)
        """Shape [B, 2, prices, levels + 1]: m_in and m_out by level, then for all pairs."""

    def __len__(self) -> int:
        return len(self.lo)

    def charge(self, surcharges: Surcharges) -> None:
        """Adds `surcharges` to what stages pay for items that surely cross, from now on."""
        self._surcharges = surcharges

    def surcharge(self, stage: int) -> FloatArray | None:
        """Shape [2, levels + 1, B]: what comes on top of m_in and m_out, None where it is none."""
        added = self._surcharges
        if added is None or not (added.entering[stage].any() or added.leaving[stage].any()):
            return None
        each = (added.entering[stage], added.leaving[stage])
        levels = range(len(self.levels) + 1)
        return np.asarray(
            [[(self._sure_from[:, side] <= g) @ each[side] for g in levels] for side in (0, 1)]
        )

    def level_between(self, start: IntArray, stop: IntArray) -> IntArray:
        """The greatest level surely below a stage of bin start to bin stop; -1 for none."""
        gap = np.maximum(self.lo[stop] - self.hi[start], 0.0)
        level: IntArray = np.searchsorted(self.levels, gap - self.slack) - 1
        return level

    def split(self, alive: BoolArray, split: BoolArray) -> None:
        """Halves the bins of `split`, keeps the others alive, drops the rest."""
        kept = alive & ~split
        middle = (self.lo[split] + self.hi[split]) / 2
        lo = np.concatenate([self.lo[split], middle])
        hi = np.concatenate([middle, self.hi[split]])
        lo_all, hi_all = np.concatenate([self.lo[kept], lo]), np.concatenate([self.hi[kept], hi])
        new, new_sure = self._source.least(lo, hi, self.levels)
        crossings = np.concatenate([self.crossings[kept], new])
        sure_from = np.concatenate([self._sure_from[kept], new_sure])
        order = np.argsort(lo_all, kind="stable")
        order = order[np.isfinite(crossings[order, 0, 0, 0])]  # the others hold no prefix
        self.lo, self.hi = lo_all[order], hi_all[order]
        self.crossings, self._sure_from = crossings[order], sure_from[order]
