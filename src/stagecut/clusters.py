"""The cluster that a plan is for: described, named, in a file, present, or assumed."""

from __future__ import annotations

from pathlib import Path

from stagecut.ir.clusterfile import SUFFIX, load_cluster
from stagecut.ir.device import Cluster
from stagecut.ir.devices import DEVICES
from stagecut.ir.devices import cluster as named_cluster


def find_cluster(given: Cluster | str | Path | None, n_devices: int) -> Cluster:
    """`n_devices` devices of what the user gave.

    Without it: of the GPUs present, if the table has them, else the assumed ones.

    Raises:
        ArgumentError: there is no such cluster, or it has fewer devices.
    """
    if isinstance(given, Cluster):
        return given.first(n_devices)
    if isinstance(given, Path) or (given is not None and given.endswith(SUFFIX)):
        return load_cluster(given).first(n_devices)
    return named_cluster(given or present_gpu(), n_devices)


def present_gpu() -> str | None:
    """The name in the device table of this machine's GPU, if it has one that is there."""
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return table_name(properties.name, properties.total_memory)


def table_name(name: str, memory_bytes: float) -> str | None:
    """The device that the driver calls `name`, as `NVIDIA A100-SXM4-80GB`; the nearest in memory.

    None where the table has none of its model, within a tenth of its memory.
    """
    words = name.replace("-", " ").split()
    pcie = "PCIe" in words
    fitting = [
        device
        for device in DEVICES.values()
        if device.name.split("-")[0] in words
        and ("PCIe" in device.name) == pcie
        and abs(device.memory_bytes - memory_bytes) < memory_bytes / 10
    ]
    found = min(fitting, key=lambda d: abs(d.memory_bytes - memory_bytes), default=None)
    return None if found is None else found.name
