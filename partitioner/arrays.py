"""Small array helpers with exact types."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stagecut.ir.problem import FloatArray, IntArray

BoolArray = NDArray[np.bool_]


def sums(index: IntArray, amount: FloatArray, size: int) -> FloatArray:
    """Shape [size]: the sum of `amount` at each index."""
    return np.bincount(index, amount, minlength=size).astype(np.float64, copy=False)


def groups(key: IntArray, number: IntArray, size: int) -> list[list[int]]:
    """For each key 0..size-1 its numbers, in the order given."""
    by_key = np.argsort(key, kind="stable")
    starts = np.searchsorted(key[by_key], np.arange(size + 1)).tolist()
    flat = number[by_key].tolist()
    return [flat[start:stop] for start, stop in pairwise(starts)]
