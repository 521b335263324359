"""What the search may choose: every way to run a batch on some devices.

Legend:  D devices in all, R replicas, d = D / R devices a pipeline, k stages, B rows a step over
         all replicas, m micro-batches, b = B / (R m) rows a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stagecut.ir.errors import ArgumentError

STAGES_A_DEVICE = {"interleaved": 2, "zb_v": 2, "dualpipe_v": 2}
"""Of the schedules by which devices own several stages; the others run one each."""
V_SHAPED = ("zb_v", "dualpipe_v")
TRAINING = ("1f1b", "interleaved", "zero_bubble", "zb_v", "dualpipe_v", "gpipe")
"""The schedules that `auto` tries; of equals the first is taken."""


@dataclass(frozen=True, slots=True)
class Space:
    """What is given, and what is left to choose."""

    n_devices: int
    """D."""
    replicas: int | None
    """None leaves it to the search; so do the next two."""
    n_microbatches: int | None
    schedule: str | None
    batch_size: int | None
    """B; without it every micro-batch has `rows` rows."""
    rows: int
    """Of the example."""
    any_rows: bool
    """Whether micro-batches of other sizes can be run."""
    training: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run a step."""

    schedule: str
    replicas: int
    n_devices: int
    """d."""
    n_microbatches: int
    rows: int
    """b."""

    @property
    def n_stages(self) -> int:
        """k."""
        return self.n_devices * STAGES_A_DEVICE.get(self.schedule, 1)

    @property
    def device_of_stage(self) -> tuple[int, ...]:
        """Shape [k]: where the schedule puts the stages."""
        k, d = self.n_stages, self.n_devices
        if self.schedule in V_SHAPED:
            return tuple(min(s, k - 1 - s) for s in range(k))
        return tuple(s % d for s in range(k))


def choices(space: Space) -> tuple[Choice, ...]:
    """Every choice, in a fixed order.

    Micro-batches are powers of two of rows, and the whole share of a replica.

    Raises:
        ArgumentError: the numbers allow none.
    """
    found = [
        Choice(schedule, replicas, space.n_devices // replicas, m, rows)
        for replicas in _replicas(space)
        for m, rows in _microbatches(space, replicas)
        for schedule in _schedules(space, space.n_devices // replicas)
    ]
    if not found:
        raise ArgumentError(
            f"no way to cut a batch of {space.batch_size} rows for {space.n_devices} devices"
            f"{_given(space)}; give a batch_size that replicas times micro-batches divide"
            + ("" if space.any_rows else f" into {space.rows} rows each, as traced")
        )
    return tuple(found)


def _given(space: Space) -> str:
    given = {"replicas": space.replicas, "micro-batches": space.n_microbatches}
    return "".join(f", {n} {what}" for what, n in given.items() if n is not None)


def _replicas(space: Space) -> Iterator[int]:
    if space.replicas is not None:
        yield space.replicas
        return
    for replicas in range(1, space.n_devices + 1):
        if space.n_devices % replicas == 0 and (space.batch_size or 0) % replicas == 0:
            yield replicas


def _microbatches(space: Space, replicas: int) -> Iterator[tuple[int, int]]:
    """(m, b) pairs."""
    if space.batch_size is None:
        if space.n_microbatches is not None:
            yield space.n_microbatches, space.rows
        return
    share, rest = divmod(space.batch_size, replicas)
    if rest:
        return
    for m in _counts(space, share):
        rows, rest = divmod(share, m)
        if not rest and rows and (space.any_rows or rows == space.rows):
            yield m, rows


def _counts(space: Space, share: int) -> Iterator[int]:
    if space.n_microbatches is not None:
        yield space.n_microbatches
        return
    rows = 1
    while rows < share:
        if share % rows == 0:
            yield share // rows
        rows *= 2
    yield 1


def _schedules(space: Space, n_devices: int) -> tuple[str, ...]:
    """On one device they are all alike."""
    if space.schedule is not None:
        return (space.schedule,)
    if not space.training:
        return ("forward",)
    return TRAINING if n_devices > 1 else TRAINING[:1]
