"""Small array helpers with exact types."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stagecut.ir.problem import FloatArray, IntArray

BoolArray = NDArray[np.bool_]


def sums(index: IntArray, amount: FloatArray, size: int) -> FloatArray:
    """Shape [size]: the sum of `amount` at each index."""
    return np.bincount(index, amount, minlength=size).astype(np.float64, copy=False)
