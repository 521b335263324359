"""Recordings of several ranks on one clock."""

from __future__ import annotations

import socket
import time

import torch.distributed as dist

from stagecut.runtime.recording import Recorded


def gather(mine: Recorded, group: dist.ProcessGroup | None) -> tuple[Recorded, ...]:
    """Every rank's recording, on the clock of the group's first rank.

    Processes of one host read one clock. Hosts are aligned by the moment at which they leave a
    barrier, which is as good as the barrier is short: about the latency of their network.
    """
    dist.barrier(group=group)
    left = time.perf_counter()
    everyone: list[tuple[str, float, Recorded] | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, (socket.gethostname(), left, mine), group=group)
    present = [item for item in everyone if item is not None]
    clocks: dict[str, float] = {}
    for host, moment, _ in present:
        clocks.setdefault(host, moment)
    first = present[0][1]
    return tuple(recorded.moved(first - clocks[host]) for host, _, recorded in present)
