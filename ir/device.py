"""Devices, links and clusters: what a plan is made for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stagecut.ir.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator or CPU, with rates that kernels reach in practice."""

    name: str
    kind: str
    """The torch device type: "cuda" or "cpu"."""
    memory_bytes: float
    flops_per_second: tuple[tuple[str, float], ...]
    """(dtype, peak dense matrix FLOP/s) pairs, as the vendor states them."""
    bytes_per_second: float
    """Peak memory bandwidth."""
    launch_seconds: float
    """Overhead of starting one kernel."""
    matrix_efficiency: float
    """Attainable share of the peak for matrix products, convolutions and attention."""
    memory_efficiency: float
    """Attainable share of the memory bandwidth."""
    source: str
    """Where the figures come from."""

    def matrix_flops_per_second(self, dtype: str) -> float:
        """Attainable FLOP/s of matrix products in `dtype` (as `float32`, `bfloat16`).

        A dtype the device has no figure for runs at its float32 rate.
        """
        rates = dict(self.flops_per_second)
        return rates.get(dtype, rates["float32"]) * self.matrix_efficiency

    @property
    def attainable_bytes_per_second(self) -> float:
        """Memory bandwidth that streaming kernels reach."""
        return self.bytes_per_second * self.memory_efficiency


@dataclass(frozen=True, slots=True)
class Link:
    """A connection between two devices, one direction."""

    latency_seconds: float
    bytes_per_second: float
    source: str = "given"

    def seconds(self, n_bytes: float) -> float:
        """Time to move `n_bytes` in one message."""
        return self.latency_seconds + n_bytes / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices in rank order, grouped into nodes, with the links inside and between nodes."""

    name: str
    devices: tuple[Device, ...]
    devices_per_node: int
    inside: Link
    between: Link
    assumed: bool = False
    """True where nobody named this cluster; plans say so."""

    def __post_init__(self) -> None:
        if not self.devices:
            raise ArgumentError("a cluster needs at least one device")
        if self.devices_per_node < 1:
            raise ArgumentError(f"devices_per_node is {self.devices_per_node}; give 1 or more")

    def link(self, rank: int, other: int) -> Link:
        """The link from one rank's device to another's."""
        same_node = rank // self.devices_per_node == other // self.devices_per_node
        return self.inside if same_node else self.between

    def first(self, n_devices: int) -> Cluster:
        """The cluster of the first `n_devices` devices.

        Raises:
            ArgumentError: the cluster has fewer.
        """
        if n_devices > len(self.devices):
            raise ArgumentError(
                f"the plan needs {n_devices} devices and the cluster {self.name} has "
                f"{len(self.devices)}; ask for fewer stages or give a larger cluster"
            )
        return replace(self, devices=self.devices[:n_devices])
