"""Which rank runs which device of which replica.

    2 devices x 3 replicas     device 0    ranks 0 1 2
                               device 1    ranks 3 4 5

The replicas of a device have neighbouring ranks, as a rule of one node: gradients are the larger
traffic, and their sums go over the faster links.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """The ranks of a pipeline and of its data-parallel replicas."""

    device_of_stage: tuple[int, ...]
    replicas: int

    @property
    def n_ranks(self) -> int:
        """Devices times replicas."""
        return (max(self.device_of_stage) + 1) * self.replicas

    def rank(self, stage: int, replica: int) -> int:
        """The rank that runs a stage of a replica."""
        return self.device_of_stage[stage] * self.replicas + replica

    def device(self, rank: int) -> int:
        """Which device of its pipeline a rank is."""
        return rank // self.replicas

    def replica(self, rank: int) -> int:
        """Which pipeline a rank belongs to."""
        return rank % self.replicas

    def pipeline(self, replica: int) -> tuple[int, ...]:
        """The ranks of one replica."""
        return tuple(range(replica, self.n_ranks, self.replicas))
