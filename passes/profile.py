"""Measured times of ops as data, and their file: JSON, so that another machine can plan with it."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from torch import nn

from stagecut.ir.cost import Cost
from stagecut.ir.errors import ArgumentError
from stagecut.passes.probe import Call
from stagecut.passes.resolve import OPAQUE, opaque_path

FORMAT = 1
"""Raised whenever the file changes so that older readers would misread it."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds of one op."""

    forward: float
    backward_input: float
    """Gradients of its activations."""
    backward_weight: float
    """What the gradients of its weights take beyond that."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The times of ops on one device under one torch."""

    device: str
    """As the machine names it."""
    torch_version: str
    threads: int
    """Of the CPU; 0 for a GPU."""
    timings: Mapping[str, Timing] = field(default_factory=dict)
    """By `call_name`."""

    def same_place(self, other: Profile) -> bool:
        """Whether both were taken on the same device, torch and number of threads."""
        mine = (self.device, self.torch_version, self.threads)
        return mine == (other.device, other.torch_version, other.threads)

    @property
    def place(self) -> str:
        """Where it was taken, for a reader."""
        threads = f", {self.threads} thread{'s' * (self.threads > 1)}" if self.threads else ""
        return f"{self.device}, torch {self.torch_version}{threads}"

    def with_timings(self, timings: Mapping[str, Timing]) -> Profile:
        """The profile with more timings."""
        return replace(self, timings={**self.timings, **timings})


def call_name(call: Call, received: Sequence[bool], opaque: Mapping[str, nn.Module]) -> str:
    """What a call is filed under: its target, and a digest of all that its time depends on.

    A module that runs as it is goes by what it is, not by its path in the model.
    """
    target, key = call.target, call.key
    if (path := opaque_path(target)) is not None and path in opaque:
        kind = type(opaque[path])
        target, key = f"{OPAQUE}{kind.__qualname__}", (_code(kind), repr(opaque[path]), *key[1:])
    everything = repr((key, call.state, tuple(received)))
    return f"{target}#{hashlib.sha256(everything.encode()).hexdigest()[:16]}"


def _code(kind: type[nn.Module]) -> str:
    """The source of a class; its name where there is none."""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return f"{kind.__module__}.{kind.__qualname__}"


def measured(cost: Cost, timing: Timing) -> Cost:
    """A cost with its seconds replaced."""
    return replace(
        cost,
        forward=replace(cost.forward, seconds=timing.forward),
        backward_input=replace(cost.backward_input, seconds=timing.backward_input),
        backward_weight=replace(cost.backward_weight, seconds=timing.backward_weight),
        origin="measured",
    )


def save_profile(profile: Profile, path: Path) -> None:
    """Writes the file; a reader never sees half of one."""
    document = {"stagecut_profile": FORMAT, **asdict(replace(profile, timings={}))}
    document["timings"] = {name: asdict(t) for name, t in sorted(profile.timings.items())}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(document, indent=1), encoding="utf-8")
    partial.replace(path)


def load_profile(path: Path) -> Profile:
    """Reads what `save_profile` wrote.

    Raises:
        ArgumentError: the file is not a profile, or of another format.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        timings = {name: Timing(**t) for name, t in document["timings"].items()}
        found = Profile(document["device"], document["torch_version"], document["threads"], timings)
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(
            f"{path} is not a profile of Stagecut ({error}); measure one again"
        ) from error
    if document.get("stagecut_profile") != FORMAT:
        raise ArgumentError(
            f"the profile {path} has format {document.get('stagecut_profile')}, this version "
            f"reads {FORMAT}; measure it again"
        )
    return found
