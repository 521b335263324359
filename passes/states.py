"""Bytes that a weight takes for the whole step: itself, its gradient, the optimizer's state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from stagecut.ir.errors import ArgumentError
from stagecut.ir.graph import Weight

_EIGHT_BIT_LEAST = 4096
"""8-bit optimizers keep smaller tensors in 32 bits (bitsandbytes, `min_8bit_size`)."""
_EIGHT_BIT_BLOCK = 256
"""Elements that share one float32 scale (bitsandbytes, blockwise quantisation)."""


def weight_bytes(weight: Weight, optimizer: str, training: bool) -> tuple[int, int, int]:
    """(weight, gradient, optimizer state) bytes, as torch's own optimizers hold them.

    State has the weight's dtype: two moments for `adam` and `adamw`, one for `momentum`; step
    counters are not counted. `adafactor` (torch.optim.Adafactor) keeps the row and column means
    of the last two dimensions, or the whole second moment of a vector. `adam8bit` keeps two bytes
    an element and a scale for each block of 256.

    Raises:
        ArgumentError: the optimizer is unknown.
    """
    state = _state(optimizer)
    held = weight.type.hint_bytes
    if not training or not weight.trainable:
        return held, 0, 0
    shape = weight.type.hint_shape
    element_bytes = held // max(1, weight.type.hint_elements)
    return held, held, state(shape, element_bytes)


OPTIMIZERS: tuple[str, ...] = (
    "sgd", "momentum", "adam", "adamw", "adafactor", "adam8bit", "none",
)  # fmt: skip


def step_workspace_bytes(weights: Sequence[Weight], optimizer: str, device_kind: str) -> int:
    """Temporaries of one optimizer step.

    Adam's denominator: on a GPU torch makes those of all weights at once (`foreach`), on the CPU
    one at a time, with a second temporary beside it. The other optimizers' are not counted.
    """
    sizes = [weight.type.hint_bytes for weight in weights if weight.trainable]
    if optimizer.lower() not in ("adam", "adamw") or not sizes:
        return 0
    return sum(sizes) if device_kind == "cuda" else 2 * max(sizes)


def _state(optimizer: str) -> Callable[[tuple[int, ...], int], int]:
    found = _STATES.get(optimizer.lower())
    if found is None:
        raise ArgumentError(
            f"no optimizer called {optimizer!r}; its memory is known for {', '.join(OPTIMIZERS)}"
        )
    return found


def _moments(count: int) -> Callable[[tuple[int, ...], int], int]:
    return lambda shape, element_bytes: count * math.prod(shape) * element_bytes


def _factored(shape: tuple[int, ...], element_bytes: int) -> int:
    if len(shape) < 2:
        return math.prod(shape) * element_bytes
    *outer, rows, columns = shape
    return math.prod(outer) * (rows + columns) * element_bytes


def _eight_bit(shape: tuple[int, ...], element_bytes: int) -> int:
    elements = math.prod(shape)
    if elements < _EIGHT_BIT_LEAST:
        return 2 * elements * 4
    return 2 * (elements + 4 * math.ceil(elements / _EIGHT_BIT_BLOCK))


_STATES: Mapping[str, Callable[[tuple[int, ...], int], int]] = MappingProxyType(
    {
        "sgd": _moments(0),
        "none": _moments(0),
        "momentum": _moments(1),
        "adam": _moments(2),
        "adamw": _moments(2),
        "adafactor": _factored,
        "adam8bit": _eight_bit,
    }
)
