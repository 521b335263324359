"""Bytes that a weight takes for the whole step: itself, its gradient, the optimizer's state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from stagecut.ir.errors import ArgumentError
from stagecut.ir.graph import Weight
from stagecut.ir.types import TensorType

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

    A name that ends in `_master`, as `adamw_master`, means an optimizer that works on a float32
    copy of every 16-bit weight: its state is the copy and the moments of that, in float32, 12 bytes
    an element for Adam (Rajbhandari et al., "ZeRO", 2020, section 3.1). Weights in float32 need no
    copy.

    Raises:
        ArgumentError: the optimizer is unknown.
    """
    state = _STATES[split_name(optimizer)[0]]
    held = weight.type.hint_bytes
    if not training or not weight.trainable:
        return held, 0, 0
    shape = weight.type.hint_shape
    element_bytes = held // max(1, weight.type.hint_elements)
    if takes_master(weight.type.dtype, optimizer):
        return held, held, 4 * math.prod(shape) + state(shape, 4)
    return held, held, state(shape, element_bytes)


def split_name(optimizer: str) -> tuple[str, bool]:
    """The optimizer, and whether it works on float32 copies of 16-bit weights.

    Raises:
        ArgumentError: the optimizer is unknown.
    """
    name = optimizer.lower()
    base = name.removesuffix(MASTER)
    if base not in OPTIMIZERS:
        raise ArgumentError(
            f"no optimizer called {optimizer!r}; its memory is known for {', '.join(OPTIMIZERS)}, "
            f"and with {MASTER} at the end for each with float32 copies of 16-bit weights"
        )
    return base, base != name


def takes_master(dtype: str, optimizer: str) -> bool:
    """Whether the optimizer keeps a float32 copy of a weight of this dtype."""
    return split_name(optimizer)[1] and dtype in _SIXTEEN_BIT


MASTER = "_master"
_SIXTEEN_BIT = ("bfloat16", "float16")
OPTIMIZERS: tuple[str, ...] = (
    "sgd", "momentum", "adam", "adamw", "adafactor", "adam8bit", "none",
)  # fmt: skip


def step_workspace_bytes(weights: Sequence[Weight], optimizer: str, device_kind: str) -> int:
    """Temporaries of one optimizer step.

    Adam's denominator: on a GPU torch makes those of all weights at once (`foreach`), on the CPU
    one at a time, with a second temporary beside it. With float32 copies, their gradients
    in float32. The other optimizers' are not counted.
    """
    moments = split_name(optimizer)[0] in ("adam", "adamw")
    sizes = [
        _temporaries(weight.type, optimizer, moments, device_kind == "cuda")
        for weight in weights
        if weight.trainable
    ]
    return sum(sizes) if device_kind == "cuda" else max(sizes, default=0)


def _temporaries(kind: TensorType, optimizer: str, moments: bool, foreach: bool) -> int:
    """Of one weight: Adam's, and the float32 gradient where there is a float32 copy."""
    master = takes_master(kind.dtype, optimizer)
    n_bytes = 4 * math.prod(kind.hint_shape) if master else kind.hint_bytes
    return n_bytes * ((1 if foreach else 2) * moments + master)


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
