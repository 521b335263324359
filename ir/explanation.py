"""Why a stage is cut where it is: what one move over each of its boundaries would do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shift:
    """One cluster moved over one boundary of a stage."""

    clusters: tuple[int, ...]
    """Its index in the problem; before it, those of the weightless ones that it takes along."""
    source: int
    """The stage it is in."""
    destination: int
    """The stage it would be in."""
    source_seconds: float
    """The load of the stage it would have left."""
    destination_seconds: float
    """The load of the stage it would have come to."""
    bottleneck_seconds: float
    """The largest load after the move, of a stage, or of a device's stages together."""
    change_seconds: float
    """That less the present one: above 0 is worse."""
    bytes_cut_change: float
    faults: tuple[str, ...]
    """Constraints the move would break."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What limits a stage and what its neighbours would gain or lose."""

    stage: int
    load_seconds: float
    bottleneck_stage: int
    """The stage with the largest load, or on the device that has it; this one where it is among
    several such."""
    bottleneck_seconds: float
    compute_seconds: float
    transfer_seconds: float
    """Sending, receiving, and gradient sums of weights that other stages hold too."""
    shifts: tuple[Shift, ...]
    """Out of the stage and into it, over either boundary, the best first."""
