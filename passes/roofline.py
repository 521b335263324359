"""Seconds of a kernel on a device it was never run on (Williams et al., 2009).

seconds = launch + max(FLOPs / attainable rate of dtype and op class, bytes / attainable bandwidth)
"""

from __future__ import annotations

from stagecut.ir.device import Device
from stagecut.passes.kernels import Kernel


def kernel_seconds(device: Device, kernel: Kernel) -> float:
    """Time of one kernel that runs alone."""
    computing = kernel.flops / device.attainable_flops_per_second(kernel.dtype, kernel.op_class)
    moving = kernel.n_bytes / device.attainable_bytes_per_second
    return device.launch_seconds + max(computing, moving)
