"""The device table, and clusters made of it.

Peak rates are the vendors' dense figures (never the ones with structured sparsity), each from the
document that its device names. What kernels reach of them is the same share for all GPUs, so that
comparisons between devices rest on the vendors' figures alone; a measured profile replaces it:

- 70% of the matrix rate. Large products reach 74% on an A100 (TF32 and FP16), 63 to 80% on an
  A6000, 76 to 88% on a V100 ("transformers-benchmarks", M. Li, 2022, micro_bench.ipynb); those of
  a model are smaller.
- 50% of it for fused attention, as `Device.attention_efficiency` says.
- 80% of the memory bandwidth: between the 75% at 10 MB and 90% at 100 MB that Calculon takes for
  an A100 (Isaev et al., SC 2023, systems/a100_80g.json).
- 80% of a link's rate: between the 65% of NVLink and 90% of InfiniBand there.

Devices without matrix units for a dtype have no entry for it and run it at their float32 rate.
`tf32` is the float32 rate where TF32 is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from stagecut.ir.device import Cluster, Device, Link
from stagecut.ir.errors import ArgumentError

_MATRIX_SHARE = 0.7
_MEMORY_SHARE = 0.8
_LINK_SHARE = 0.8
_GPU_LAUNCH_SECONDS = 5e-6
"""One kernel started from PyTorch's eager dispatcher: host-bound, so alike on all GPUs."""
_GB = 1e9
_TERA = 1e12


def _gpu(
    name: str, memory_gb: float, gb_per_second: float, source: str, **teraflops: float
) -> Device:
    rates = tuple((dtype, rate * _TERA) for dtype, rate in teraflops.items())
    return Device(
        name, "cuda", memory_gb * _GB, rates, gb_per_second * _GB,
        _GPU_LAUNCH_SECONDS, _MATRIX_SHARE, _MEMORY_SHARE, source,
    )  # fmt: skip


_TABLE = (
    _gpu("V100", 32, 900, "NVIDIA V100 datasheet (SXM2, 32 GB)", float32=15.7, float16=125),
    _gpu("T4", 16, 320, "NVIDIA T4 datasheet", float32=8.1, float16=65),
    _gpu(
        "A10G", 24, 600, "NVIDIA A10G datasheet (AWS, 2022)",
        float32=35, tf32=35, float16=70, bfloat16=70,
    ),
    _gpu(
        "A100-40GB", 40, 1555, "NVIDIA A100 datasheet (SXM4, 40 GB)",
        float32=19.5, tf32=156, float16=312, bfloat16=312, float64=19.5,
    ),
    _gpu(
        "A100-80GB", 80, 2039, "NVIDIA A100 datasheet (SXM4, 80 GB)",
        float32=19.5, tf32=156, float16=312, bfloat16=312, float64=19.5,
    ),
    _gpu(
        "A100-PCIe", 80, 1935, "NVIDIA A100 datasheet (PCIe, 80 GB)",
        float32=19.5, tf32=156, float16=312, bfloat16=312, float64=19.5,
    ),
    _gpu(
        "L4", 24, 300, "NVIDIA L4 datasheet; half of its figures with sparsity",
        float32=30.3, tf32=60, float16=121, bfloat16=121,
    ),
    _gpu(
        "L40S", 48, 864, "NVIDIA L40S datasheet",
        float32=91.6, tf32=183, float16=362.05, bfloat16=362.05,
    ),
    _gpu(
        "H100", 80, 3350, "NVIDIA H100 datasheet (SXM5); half of its figures with sparsity",
        float32=67, tf32=494.7, float16=989.4, bfloat16=989.4, float64=67,
    ),
    _gpu(
        "H100-PCIe", 80, 2000, "NVIDIA H100 datasheet (PCIe); half of its figures with sparsity",
        float32=51, tf32=378, float16=756.5, bfloat16=756.5, float64=51,
    ),
    _gpu(
        "H200", 141, 4800, "NVIDIA H200 datasheet (SXM); half of its figures with sparsity",
        float32=67, tf32=494.7, float16=989.4, bfloat16=989.4, float64=67,
    ),
    _gpu(
        "B200", 180, 8000,
        "NVIDIA Blackwell Architecture Technical Brief (HGX B200 at 1,000 W); memory: NVIDIA DGX "
        "B200 datasheet, an eighth of the system",
        float32=80, tf32=1100, float16=2250, bfloat16=2250, float64=40,
    ),
    _gpu(
        "MI300X", 192, 5300, "AMD Instinct MI300X Accelerator data sheet",
        float32=163.4, tf32=653.7, float16=1307.4, bfloat16=1307.4, float64=163.4,
    ),
    Device(
        "CPU", "cpu", 16 * _GB, (("float32", 96e9), ("float64", 48e9)), 20 * _GB, 4e-6,
        0.85, 0.85,
        "one AVX2 core at 3 GHz: 2 FMA units of 8 lanes; shares, bandwidth and overhead as "
        "measured by benchmarks/costs on one core of an AMD EPYC",
    ),
)  # fmt: skip

DEVICES: Mapping[str, Device] = MappingProxyType({device.name: device for device in _TABLE})
"""Every device by its name."""

_ALIASES: Mapping[str, str] = MappingProxyType({"A100": "A100-80GB"})


def device(name: str) -> Device:
    """The device of this name, in any case; `A100` is the one of 80 GB.

    Raises:
        ArgumentError: the table has no such device; the message lists those it has.
    """
    key = name.strip().upper()
    by_key = {known.upper(): known for known in DEVICES}
    found = by_key.get(_ALIASES.get(key, key).upper())
    if found is None:
        raise ArgumentError(
            f"no device called {name!r}; choose one of {', '.join(DEVICES)}, or describe yours "
            "as a Device"
        )
    return DEVICES[found]


def _link(gb_per_second: float, latency_seconds: float, source: str) -> Link:
    return Link(latency_seconds, gb_per_second * _GB * _LINK_SHARE, source)


# One direction of one device's connection. Latency: 10 µs inside a node and 20 µs between nodes, as
# Calculon takes them (see above); over PCIe, through the host, half as much again.
_NVLINK2 = _link(50, 10e-6, "NVIDIA DGX-1 (V100) white paper: two NVLinks of 25 GB/s a pair")
_NVLINK3 = _link(300, 10e-6, "NVIDIA A100 datasheet: NVLink 600 GB/s, both directions")
_NVLINK4 = _link(450, 10e-6, "NVIDIA H100 datasheet: NVLink 900 GB/s, both directions")
_NVLINK5 = _link(900, 10e-6, "NVIDIA DGX B200 datasheet: NVLink 14.4 TB/s over 8, both directions")
_XGMI = _link(64, 10e-6, "AMD Instinct MI300X data sheet: 128 GB/s to each peer, both directions")
_PCIE3 = _link(16, 15e-6, "PCI Express 3.0 x16")
_PCIE4 = _link(32, 15e-6, "PCI Express 4.0 x16")
_PCIE5 = _link(64, 15e-6, "PCI Express 5.0 x16")
_LOOPBACK = _link(
    2, 60e-6, "gloo between two processes of one machine: assumed, see benchmarks/costs"
)


def _network(gigabits: float, source: str) -> Link:
    return _link(gigabits / 8, 20e-6, source)


_IB_100 = _network(50, "NVIDIA DGX-1 datasheet: 4 InfiniBand ports of 100 Gb/s for 8 GPUs")
_IB_200 = _network(200, "NVIDIA DGX A100 datasheet: one port of 200 Gb/s a GPU")
_IB_400 = _network(400, "NVIDIA DGX H100, H200 and B200 datasheets: one port of 400 Gb/s a GPU")
_EFA_400 = _network(50, "AWS, 'Amazon EC2 P4d instances deep dive': 400 Gb/s for 8 GPUs")
_EFA_3200 = _network(400, "AWS EC2 User Guide, EFA on P5: 3,200 Gb/s for 8 GPUs")
_ENA_100 = _network(12.5, "AWS EC2 g4dn.metal, g5.48xlarge and g6.48xlarge: 100 Gb/s for 8 GPUs")
_ETHERNET = _network(10, "Ethernet of 10 Gb/s")

_NODES: Mapping[str, tuple[str, int, Link, Link]] = MappingProxyType(
    {
        "dgx-v100": ("V100", 8, _NVLINK2, _IB_100),
        "dgx-a100": ("A100-80GB", 8, _NVLINK3, _IB_200),
        "dgx-h100": ("H100", 8, _NVLINK4, _IB_400),
        "dgx-h200": ("H200", 8, _NVLINK4, _IB_400),
        "dgx-b200": ("B200", 8, _NVLINK5, _IB_400),
        "mi300x": ("MI300X", 8, _XGMI, _IB_400),
        "p4d": ("A100-40GB", 8, _NVLINK3, _EFA_400),
        "p5": ("H100", 8, _NVLINK4, _EFA_3200),
        "g4dn": ("T4", 8, _PCIE3, _ENA_100),
        "g5": ("A10G", 8, _PCIE4, _ENA_100),
        "g6": ("L4", 8, _PCIE4, _ENA_100),
        "l40s": ("L40S", 8, _PCIE4, _IB_200),
        "a100-pcie-pair": ("A100-PCIe", 2, _PCIE4, _ETHERNET),
        "h100-pcie-pair": ("H100-PCIe", 2, _PCIE5, _ETHERNET),
        "cpu": ("CPU", 64, _LOOPBACK, _ETHERNET),
    }
)
CLUSTERS: tuple[str, ...] = tuple(_NODES)
"""The names that `cluster` knows, besides those of devices."""


def cluster(name: str | None, n_devices: int) -> Cluster:
    """`n_devices` devices of a preset (`dgx-h100`, `p4d`, `g5`, …) or of a device (`H100`).

    A device's name stands for the first preset that is made of it. Without a name: A100-80GB in
    nodes of 8, and the cluster says that it is assumed.

    Raises:
        ArgumentError: no preset or device has that name, or `n_devices` is below 1.
    """
    if n_devices < 1:
        raise ArgumentError(f"a cluster of {n_devices} devices; ask for 1 or more")
    preset = _preset(name or "dgx-a100")
    device_name, per_node, inside, between = _NODES[preset]
    devices = (DEVICES[device_name],) * n_devices
    label = f"{n_devices} x {device_name}"
    return Cluster(label, devices, per_node, inside, between, assumed=name is None)


def _preset(name: str) -> str:
    key = name.strip().lower()
    if key in _NODES:
        return key
    try:
        wanted = device(name).name
    except ArgumentError as error:
        raise ArgumentError(
            f"no cluster called {name!r}; choose one of {', '.join(CLUSTERS)}; or a device, "
            f"{', '.join(DEVICES)}; or describe yours in a .toml file, as stagecut.ir.clusterfile "
            "shows and `stagecut profile --links` writes, or as a Cluster"
        ) from error
    if wanted == "A100-40GB":
        return "p4d"
    return next(preset for preset, (made_of, *_) in _NODES.items() if made_of == wanted)
