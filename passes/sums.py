"""The additions that join gradients: a value with c users takes c - 1, a weight one for each user.

The backward meets the last user first, so a value's last user pays nothing. A weight's gradient is
always added to what the earlier micro-batches left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stagecut.ir.cost import Cost, Work
from stagecut.ir.device import Device
from stagecut.ir.graph import Graph, WeightRef, op_refs
from stagecut.passes.kernels import Kernel
from stagecut.passes.layout import Layout
from stagecut.passes.propagate import Layouts
from stagecut.passes.roofline import kernel_seconds


def with_sums(
    graph: Graph,
    costs: Sequence[Cost],
    layouts: Layouts,
    runs_backward: Sequence[bool],
    device: Device,
) -> list[Cost]:
    """The ops' costs, each addition charged to the user whose gradient comes second or later."""
    charged = list(costs)
    met: set[str] = set()
    for index in reversed(range(len(graph.ops))):
        if not runs_backward[index]:
            continue
        for ref in dict.fromkeys(op_refs(graph.ops[index])):
            found, cost = layouts.of(ref), charged[index]
            if not isinstance(found, Layout) or not found.requires_grad:
                continue
            if isinstance(ref, WeightRef):
                work = cost.backward_weight + _sum(found, device)
                charged[index] = replace(cost, backward_weight=work)
            elif ref.name in met:
                work = cost.backward_input + _sum(found, device)
                charged[index] = replace(cost, backward_input=work)
            met.add(ref.name)
    return charged


def _sum(found: Layout, device: Device) -> Work:
    """One addition of two gradients of this layout, in place."""
    n_bytes = 3 * found.n_bytes
    kernel = Kernel(0, found.elements, n_bytes, found.dtype)
    return Work(0, found.elements, n_bytes, 1, kernel_seconds(device, kernel))
