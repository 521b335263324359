"""Seconds of one step of an optimizer.

torch's own optimizer is run on a small tensor and its kernels are counted: they move so many bytes
for each element of a weight, whatever its size. On a GPU torch updates all weights of a dtype with
one series of kernels (`foreach`), on the CPU each weight with its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

import torch

from stagecut.ir.device import Device
from stagecut.ir.graph import Weight
from stagecut.ir.types import TensorType, dtype_bytes
from stagecut.passes.counter import KernelCounter
from stagecut.passes.states import split_name, takes_master

NONE_TIMED: Mapping[str, float] = MappingProxyType({})
_SMALL = 64
"""Elements in each of the last two dimensions of the tensor that is counted on."""

_MAKERS: Mapping[str, Callable[[torch.nn.Parameter, bool], torch.optim.Optimizer]] = (
    MappingProxyType(
        {
            "sgd": lambda p, foreach: torch.optim.SGD([p], lr=1e-3, foreach=foreach),
            "momentum": lambda p, foreach: torch.optim.SGD(
                [p], lr=1e-3, momentum=0.9, foreach=foreach
            ),
            "adam": lambda p, foreach: torch.optim.Adam([p], foreach=foreach),
            "adamw": lambda p, foreach: torch.optim.AdamW([p], foreach=foreach),
            "adafactor": lambda p, foreach: torch.optim.Adafactor([p], foreach=foreach),
        }
    )
)


def step_seconds(
    weights: Sequence[Weight],
    optimizer: str,
    device: Device,
    timed: Mapping[str, float] = NONE_TIMED,
) -> float:
    """Seconds of one step on some weights: as timed, by name, or by the device's roofline.

    Raises:
        ArgumentError: the optimizer is unknown.
    """
    trainable = [weight for weight in weights if weight.trainable]
    known = sum(timed[weight.name] for weight in trainable if weight.name in timed)
    rest = [weight.type for weight in trainable if weight.name not in timed]
    foreach = device.kind == "cuda"
    moved = [_moved(kind, optimizer, foreach) for kind in rest]
    launches = [n_kernels for _, n_kernels in moved]
    started = max(launches, default=0) if foreach else sum(launches)
    n_bytes = sum(n for n, _ in moved)
    return known + started * device.launch_seconds + n_bytes / device.attainable_bytes_per_second


def step_name(kind: TensorType, optimizer: str) -> str:
    """What the time of a weight's step is filed under."""
    return f"step:{optimizer.lower()}#{kind.dtype}{list(kind.hint_shape)}"


def step_of(
    kind: TensorType, optimizer: str, place: torch.device, *, foreach: bool
) -> Callable[[], object] | None:
    """What runs a step on a weight of its own; None for an optimizer that torch has not."""
    base, _ = split_name(optimizer)
    maker = _MAKERS.get(base)
    if maker is None:
        return None
    dtype = getattr(torch, kind.dtype)
    weight = torch.nn.Parameter(torch.ones(kind.hint_shape, dtype=dtype, device=place))
    gradient = torch.ones_like(weight)
    if not takes_master(kind.dtype, optimizer):
        weight.grad = gradient
        return maker(weight, foreach).step
    master = torch.nn.Parameter(weight.detach().float())
    stepping = maker(master, foreach)

    def step() -> None:
        master.grad = gradient.float()
        stepping.step()
        weight.data.copy_(master.data)

    return step


def _moved(kind: TensorType, optimizer: str, foreach: bool) -> tuple[float, int]:
    """(bytes read and written, kernels started) of a step on one weight."""
    elements = math.prod(kind.hint_shape)
    if split_name(optimizer)[0] == "none":
        return 0.0, 0
    counted = _counted(kind.dtype, min(len(kind.hint_shape), 2), optimizer.lower(), foreach)
    if counted is None:  # one fused kernel: weight, gradient and two bytes of state, in and out
        return elements * (3.0 * dtype_bytes(kind.dtype) + 4), 1
    bytes_an_element, n_kernels = counted
    return elements * bytes_an_element, n_kernels


@lru_cache(maxsize=64)
def _counted(dtype: str, n_dims: int, optimizer: str, foreach: bool) -> tuple[float, int] | None:
    """(bytes an element, kernels) of a step on a small tensor."""
    kind = TensorType((_SMALL,) * n_dims, dtype)
    place = torch.device("cpu")
    step = step_of(kind, optimizer, place, foreach=foreach)
    if step is None:
        return None
    step()  # makes the state
    # No device's rates matter here: bytes and kernels are counted.
    with KernelCounter(_ANY) as counter:
        step()
    return counter.work.bytes / _SMALL**n_dims, counter.work.kernels


_ANY = Device("any", "cpu", 1.0, (("float32", 1.0),), 1.0, 0.0, 1.0, 1.0, "none needed")
