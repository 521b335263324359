"""What a model's ops cost on the devices: by their published rates, or as measured."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from stagecut.fitting import Costed
from stagecut.frontend import untouched
from stagecut.ir.device import Cluster
from stagecut.ir.errors import ArgumentError
from stagecut.ir.graph import Graph
from stagecut.opaque import opaque_modules
from stagecut.passes import Profile, annotate, load_profile, measure


@dataclass(frozen=True, slots=True)
class Pricing:
    """Where costs come from."""

    model: nn.Module
    """Runs what was not traced."""
    cluster: Cluster
    training: bool
    optimizer: str
    cost: str | Path
    """`roofline`, `measured`, or the path of a profile."""

    def profile(self, graph: Graph) -> Profile | None:
        """Measured times to plan with; None for the roofline.

        Raises:
            ArgumentError: there is no such source, or the devices are of several kinds.
        """
        cost, cluster = self.cost, self.cluster
        if cost == "roofline":
            return None
        if cost != "measured" and not Path(cost).is_file():
            raise ArgumentError(f"cost is {cost!r}; give roofline, measured, or a profile's path")
        kinds = {device.name for device in cluster.devices}
        if len(kinds) > 1:
            raise ArgumentError(
                f"cost is {str(cost)!r}: measured times are of one device, and the cluster has "
                f"{', '.join(sorted(kinds))}; use cost='roofline'"
            )
        if cost != "measured":
            return load_profile(Path(cost))
        opaque = opaque_modules(graph, self.model)
        with untouched(self.model):
            return measure(
                graph, cluster.devices[0], opaque, self.training,
                optimizer=self.optimizer, cache=_cache(),
            )  # fmt: skip

    def costed(self, graph: Graph, profile: Profile | None) -> Costed:
        """The annotated graph for each kind of device, that of the first device first."""
        opaque = opaque_modules(graph, self.model)
        with untouched(self.model):
            return {
                device.name: annotate(graph, device, opaque, self.training, profile)
                for device in dict.fromkeys(self.cluster.devices)
            }


def measured_note(profile: Profile | None, graph: Graph) -> tuple[str, ...]:
    """Where measured times are from, and the ops that have none."""
    if profile is None:
        return ()
    without = dict.fromkeys(
        op.target
        for op in graph.ops
        if op.cost is not None and op.cost.forward.kernels and op.cost.origin != "measured"
    )
    missing = f" No times there, so by roofline: {', '.join(without)}." if without else ""
    return (f"Times were measured on {profile.place}.{missing}",)


def _cache() -> Path:
    """Where measured times are kept between runs."""
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return root / "stagecut" / "profile.json"
