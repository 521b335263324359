"""Data-parallel replicas: the devices that one of them sees, and the links between copies.

The copies of a stage have neighbouring ranks (`runtime/layout.py`): device d of replica r is rank
d R + r.
"""

from __future__ import annotations

from dataclasses import replace

from stagecut.ir.device import Cluster, Link, PairLink


def pipeline_cluster(cluster: Cluster, replicas: int) -> Cluster:
    """The devices of the first of `replicas` equal pipelines."""
    if replicas == 1:
        return cluster
    return replace(
        cluster,
        devices=cluster.devices[::replicas],
        devices_per_node=max(1, cluster.devices_per_node // replicas),
        pairs=tuple(
            PairLink((pair.ranks[0] // replicas, pair.ranks[1] // replicas), pair.link)
            for pair in cluster.pairs
            if not any(rank % replicas for rank in pair.ranks)
        ),
    )


def copies_link(cluster: Cluster, replicas: int) -> Link | None:
    """The slowest link among the copies of a stage; None where there is one copy."""
    if replicas == 1:
        return None
    links = [
        cluster.link(rank, other)
        for rank in range(len(cluster.devices))
        for other in range(rank + 1, rank - rank % replicas + replicas)
        if other < len(cluster.devices)
    ]
    return min(links, key=lambda link: link.bytes_per_second, default=None)


def copies_seconds(link: Link, n_bytes: float, replicas: int) -> float:
    """A ring's sum of gradients over all copies.

    Each sends and receives 2 (R - 1) parts of 1 / R. Patarasuk and Yuan, "Bandwidth optimal
    all-reduce algorithms", 2009.
    """
    return 2 * (replicas - 1) * link.seconds(n_bytes / replicas)
