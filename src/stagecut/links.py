"""Measures the links between the ranks of a process group, as a cluster to plan for."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import torch
import torch.distributed as dist

from stagecut.clusters import table_name
from stagecut.ir.device import Cluster, Device, Link, PairLink
from stagecut.ir.devices import device
from stagecut.ir.errors import ArgumentError

SIZES = (1, 2**12, 2**16, 2**20, 2**23)
"""Bytes of the messages that are timed."""
REPEATS = 15
WARM_UP = 3


def measured_cluster() -> Cluster:
    """The ranks' devices and the links between them; every rank of the default group calls it.

    Messages go back and forth between two ranks at a time, each way on its own, as a pipeline's
    do; latency and bandwidth are the line through their medians.

    Raises:
        ArgumentError: there is one rank, or a GPU that the device table does not have.
    """
    if dist.get_world_size() < 2:
        raise ArgumentError("links are between two ranks or more; this is one")
    present: list[tuple[str, str]] = [("", "")] * dist.get_world_size()
    dist.all_gather_object(present, (platform.node(), _device_name()))
    if unknown := sorted({name for _, name in present if name.startswith("?")}):
        raise ArgumentError(
            f"the device table has no {', '.join(name[1:] for name in unknown)}; write the cluster "
            "by hand, with a [device.NAME] table, and give partition(cost='measured')"
        )
    nodes = [node for node, _ in present]
    devices = tuple(device(name) for _, name in present)
    return cluster_of(devices, nodes, _links())


def cluster_of(
    devices: Sequence[Device], nodes: Sequence[str], links: Mapping[tuple[int, int], Link]
) -> Cluster:
    """A cluster of measured links; `nodes` has the machine of each rank.

    Where there are more than two ranks every pair keeps its own link; what is said of all those
    inside a node, and between nodes, is the slowest.
    """
    per_node = next((r for r, node in enumerate(nodes) if node != nodes[0]), len(nodes))
    inside = [link for (a, b), link in links.items() if nodes[a] == nodes[b]]
    between = [link for (a, b), link in links.items() if nodes[a] != nodes[b]]
    near, far = (min(found, key=_rate) if found else None for found in (inside, between))
    one = near or far
    assert one is not None  # two ranks have a link
    pairs = tuple(PairLink(ranks, link) for ranks, link in links.items()) if len(links) > 1 else ()
    return Cluster("measured", tuple(devices), per_node, one, far or one, pairs=pairs)


def fitted_link(sizes: Sequence[int], seconds: Sequence[float], source: str) -> Link:
    """The latency and bandwidth that come nearest to some messages' times, by relative error."""
    times = np.asarray(seconds)
    rows = np.stack([np.ones(len(sizes)), np.asarray(sizes, dtype=float)], axis=1) / times[:, None]
    (latency, per_byte), *_ = np.linalg.lstsq(rows, np.ones(len(sizes)), rcond=None)
    if per_byte <= 0:  # times that do not grow with size: only the largest says something
        return Link(float(times[0]), sizes[-1] / float(times[-1]), source)
    return Link(max(0.0, float(latency)), 1 / float(per_byte), source)


def _rate(link: Link) -> float:
    return link.bytes_per_second


def _device_name() -> str:
    """The present device's name in the table; after a question mark where the table has none."""
    if not torch.cuda.is_available():
        return "CPU"
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return table_name(properties.name, properties.total_memory) or f"?{properties.name}"


def _links() -> dict[tuple[int, int], Link]:
    found: dict[tuple[int, int], Link] = {}
    for a, b in combinations(range(dist.get_world_size()), 2):
        dist.barrier()
        seconds: list[list[float]] = [[]]
        if dist.get_rank() in (a, b):
            seconds = [[_message_seconds(size, a, b) for size in SIZES]]
        dist.broadcast_object_list(seconds, src=a)
        source = f"measured by {dist.get_backend()} between ranks {a} and {b}"
        found[a, b] = fitted_link(SIZES, seconds[0], source)
    return found


def _message_seconds(n_bytes: int, a: int, b: int) -> float:
    """Half the median of a message there and back."""
    place = "cuda" if torch.cuda.is_available() else "cpu"
    tensor = torch.zeros(n_bytes, dtype=torch.uint8, device=place)
    rank = dist.get_rank()
    times = []
    for _ in range(WARM_UP + REPEATS):
        started = time.perf_counter()
        for sender in (a, b):
            if rank == sender:
                dist.send(tensor, a + b - rank)
            else:
                dist.recv(tensor, sender)
        if place == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[WARM_UP:]) / 2
