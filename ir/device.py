"""Devices, links and clusters: what a plan is made for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from stagecut.ir.errors import ArgumentError

OpClass = Literal["matrix", "convolution", "attention", "recurrent"]
"""Kernels that run on matrix units, by the library that has them."""
CUDNN: tuple[OpClass, ...] = ("convolution", "recurrent")
"""What torch runs in TF32 unless told otherwise: `torch.backends.cudnn.allow_tf32` is True from the
start, `torch.backends.cuda.matmul.allow_tf32` False (torch documentation, "CUDA semantics")."""
EVERY_CLASS: tuple[OpClass, ...] = ("matrix", "convolution", "attention", "recurrent")


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator or CPU, with rates that kernels reach in practice."""

    name: str
    kind: str
    """The torch device type: "cuda" or "cpu"."""
    memory_bytes: float
    flops_per_second: tuple[tuple[str, float], ...]
    """(dtype, peak dense matrix FLOP/s) pairs, as the vendor states them; `tf32` is how float32
    work may run where the user allows it."""
    bytes_per_second: float
    """Peak memory bandwidth."""
    launch_seconds: float
    """Overhead of starting one kernel."""
    matrix_efficiency: float
    """Attainable share of the peak for matrix products, convolutions and recurrent layers."""
    memory_efficiency: float
    """Attainable share of the memory bandwidth."""
    source: str
    """Where the figures come from."""

    attention_efficiency: float = 0.5
    """Attainable share of the peak for fused attention, which has a softmax between its products:
    FlashAttention-2 reaches 50 to 73% of an A100's (Dao, 2023, arXiv 2307.08691)."""
    tf32: tuple[OpClass, ...] = CUDNN
    """What float32 work runs in TF32, on a device that has it."""
    margin_share: float = 0.1
    """Share of a GPU's memory that tensors cannot have: the CUDA context, libraries' workspaces,
    communication buffers, and what torch's caching allocator leaves between blocks. As much as vLLM
    leaves (`gpu_memory_utilization`, 0.9 unless told otherwise); fragmentation alone can be worse,
    up to 33% where it was studied (GMLake, ASPLOS 2024)."""

    def attainable_flops_per_second(self, dtype: str, op_class: OpClass = "matrix") -> float:
        """FLOP/s that kernels of a class reach in `dtype` (as `float32`, `bfloat16`).

        A dtype the device has no figure for runs at its float32 rate.
        """
        rates = dict(self.flops_per_second)
        if dtype == "float32" and op_class in self.tf32 and "tf32" in rates:
            dtype = "tf32"
        share = self.attention_efficiency if op_class == "attention" else self.matrix_efficiency
        return rates.get(dtype, rates["float32"]) * share

    @property
    def margin_bytes(self) -> float:
        """What tensors cannot have of the memory; nothing on a CPU."""
        return self.memory_bytes * self.margin_share if self.kind != "cpu" else 0.0

    @property
    def usable_bytes(self) -> float:
        """What tensors can have of the memory."""
        return self.memory_bytes - self.margin_bytes

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
class PairLink:
    """The link between two ranks, both ways, where it is another than most."""

    ranks: tuple[int, int]
    link: Link


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
    pairs: tuple[PairLink, ...] = ()
    """Links that are neither as most inside a node nor as most between nodes."""

    def __post_init__(self) -> None:
        if not self.devices:
            raise ArgumentError("a cluster needs at least one device")
        if self.devices_per_node < 1:
            raise ArgumentError(f"devices_per_node is {self.devices_per_node}; give 1 or more")
        ranks = range(len(self.devices))
        for pair in self.pairs:
            if len(set(pair.ranks)) < 2 or not set(pair.ranks) <= set(ranks):
                raise ArgumentError(
                    f"a link between ranks {pair.ranks}: there are {len(ranks)} devices"
                )

    def link(self, rank: int, other: int) -> Link:
        """The link from one rank's device to another's."""
        for pair in self.pairs:
            if {rank, other} == set(pair.ranks):
                return pair.link
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
        pairs = tuple(pair for pair in self.pairs if max(pair.ranks) < n_devices)
        return replace(self, devices=self.devices[:n_devices], pairs=pairs)

    def running(self, dtype: str | None) -> Cluster:
        """The cluster as it runs float32 models in `dtype`.

        None: as torch does unless told otherwise, TF32 in convolutions and recurrent layers alone;
        `float32`: no TF32 at all; `tf32`: TF32 wherever the device has it.

        Raises:
            ArgumentError: another dtype, which is the model's own to have.
        """
        if dtype is None:
            return self
        if dtype not in ("float32", "tf32"):
            raise ArgumentError(
                f"dtype is {dtype!r}; it says how float32 products run: float32 or tf32. For "
                "float16 or bfloat16 plan the model as it will run: cast (model.bfloat16()), or "
                "with torch.autocast around its forward; its ops then have that dtype, and its cost"
            )
        classes = EVERY_CLASS if dtype == "tf32" else ()
        return replace(self, devices=tuple(replace(d, tf32=classes) for d in self.devices))
