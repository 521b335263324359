"""The schedules by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from stagecut.ir.errors import ArgumentError
from stagecut.ir.schedule import Schedule
from stagecut.partitioner.schedules.dualpipe_v import dualpipe_v
from stagecut.partitioner.schedules.forward_only import forward_only
from stagecut.partitioner.schedules.gpipe import gpipe
from stagecut.partitioner.schedules.interleaved import interleaved
from stagecut.partitioner.schedules.one_f_one_b import one_f_one_b
from stagecut.partitioner.schedules.zb_v import zb_v
from stagecut.partitioner.schedules.zero_bubble import zero_bubble

Generator = Callable[[int, int, int], Schedule]
"""(stages, devices, micro-batches) -> schedule."""

SCHEDULES: Mapping[str, Generator] = MappingProxyType(
    {
        "gpipe": gpipe,
        "1f1b": one_f_one_b,
        "interleaved": interleaved,
        "zero_bubble": zero_bubble,
        "zb_v": zb_v,
        "dualpipe_v": dualpipe_v,
        "forward": forward_only,
    }
)


def make_schedule(name: str, n_stages: int, n_devices: int, n_microbatches: int) -> Schedule:
    """The schedule called `name`, before communication is added.

    Raises:
        ArgumentError: no schedule has that name, or it cannot run these numbers.
    """
    if name not in SCHEDULES:
        raise ArgumentError(f"no schedule is called {name!r}; choose one of {', '.join(SCHEDULES)}")
    counts = {"stages": n_stages, "devices": n_devices, "micro-batches": n_microbatches}
    if low := [f"{count} {what}" for what, count in counts.items() if count < 1]:
        raise ArgumentError(f"schedule {name} asked for {', '.join(low)}; give 1 or more of each")
    if n_stages < n_devices:
        raise ArgumentError(
            f"schedule {name} asked for {n_stages} stages on {n_devices} devices; "
            f"every device needs a stage: use {n_stages} devices"
        )
    return SCHEDULES[name](n_stages, n_devices, n_microbatches)
