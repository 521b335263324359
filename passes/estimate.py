"""The cost of an op that cannot be probed, from the sizes of what it reads and makes.

It is taken for one kernel that moves every argument and result once, keeps its arguments for a
backward of twice that work, and multiplies no matrices.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagecut.ir.cost import Saved, Work
from stagecut.ir.device import Device
from stagecut.ir.graph import Op
from stagecut.ir.types import TensorType, is_differentiable
from stagecut.passes.kernels import Kernel
from stagecut.passes.layout import Layout, contiguous
from stagecut.passes.probe import Backward, Call, Forward
from stagecut.passes.roofline import kernel_seconds


class Estimate:
    """Stands where a `Probe` would."""

    def __init__(self, call: Call, op: Op, device: Device) -> None:
        given = [slot for slot in call.slots if isinstance(slot, Layout)]
        self._work = _work(given, op, device)
        self._weights = any(slot.weight and slot.requires_grad for slot in given)
        grads = any(slot.requires_grad for slot in given)
        results = tuple(_result(value.type, grads) for value in op.results)
        saved = tuple(_saved(call)) if grads else ()
        self.forward = Forward(self._work, results, (-1,) * len(results), saved, 0)

    def backward(self, received: Sequence[bool]) -> Backward:
        """As much again for the inputs, and for the weights where there are any."""
        if not any(received):
            return Backward(Work(), Work(), 0)
        return Backward(self._work, self._work if self._weights else Work(), 0)


def _work(given: Sequence[Layout], op: Op, device: Device) -> Work:
    made = [value.type for value in op.results if isinstance(value.type, TensorType)]
    n_bytes = sum(slot.n_bytes for slot in given) + sum(t.hint_bytes for t in made)
    elements = max((t.hint_elements for t in made), default=0)
    kernel = Kernel(0, elements, n_bytes, made[0].dtype if made else "float32")
    return Work(0, elements, n_bytes, 1, kernel_seconds(device, kernel))


def _result(type_: object, grads: bool) -> Layout | None:
    if not isinstance(type_, TensorType):
        return None
    return contiguous(type_, requires_grad=grads and is_differentiable(type_.dtype))


def _saved(call: Call) -> list[Saved]:
    return [
        Saved("argument", position, slot.storage_bytes)
        for slot, position in zip(call.slots, call.positions, strict=True)
        if isinstance(slot, Layout) and not slot.held
    ]
