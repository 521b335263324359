"""Small array helpers with exact types."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagecut.ir.problem import FloatArray, IntArray

BoolArray = NDArray[np.bool_]


def sums(index: IntArray, amount: FloatArray, size: int) -> FloatArray:
    """Shape [size]: the sum of `amount` at each index."""
    return np.bincount(index, amount, minlength=size).astype(np.float64, copy=False)


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Numbers by key: group i is flat[starts[i]:starts[i + 1]]."""

    starts: IntArray
    flat: IntArray

    @staticmethod
    def of(key: IntArray, number: IntArray, size: int) -> Groups:
        """Groups 0..size-1, each in the order given."""
        by_key = np.argsort(key, kind="stable")
        starts = np.searchsorted(key[by_key], np.arange(size + 1))
        return Groups(starts.astype(np.int64), number[by_key])

    def __getitem__(self, i: int) -> list[int]:
        members: list[int] = self.flat[self.starts[i] : self.starts[i + 1]].tolist()
        return members
