"""What `"auto"` leaves to the search: the model's costs at any size, handed to the partitioner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from stagecut.copies import copies_link, copies_seconds, pipeline_cluster
from stagecut.fitting import Limit, Recomputation
from stagecut.ir.device import Cluster
from stagecut.ir.errors import ArgumentError
from stagecut.ir.graph import Graph
from stagecut.ir.plan import Alternative
from stagecut.partitioner.planning import (
    Choice,
    Costed,
    Setting,
    Space,
    between,
    choices,
    search,
)
from stagecut.partitioner.schedules import SCHEDULES
from stagecut.passes import (
    TiedWeights,
    build_problem,
    recomputable,
    recomputed,
    relief_of,
    step_seconds,
    trained,
)
from stagecut.resizing import rows_of, rows_symbol, with_rows
from stagecut.timetables import ScheduleLike, timetable

AUTO: Literal["auto"] = "auto"
MICROBATCHES_PER_STAGE = 4
"""Micro-batches a stage where the user names no number: keeps the 1F1B bubble below a fifth."""
SAMPLES = 3
"""Sizes of micro-batch that are costed op by op; what is between them follows."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How a step is to run, as the user gave it."""

    schedule: ScheduleLike
    n_microbatches: int | str | None
    replicas: int | str
    batch_size: int | None

    @property
    def searches(self) -> bool:
        """Whether something is left to the search."""
        return self.batch_size is not None or AUTO in (
            self.schedule if isinstance(self.schedule, str) else "",
            self.n_microbatches,
            self.replicas,
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """How a step runs."""

    schedule: ScheduleLike
    n_microbatches: int | None
    """None: as many as the schedule has by default."""
    replicas: int
    rows: int
    """Of one micro-batch."""
    recompute: Recomputation
    alternatives: tuple[Alternative, ...] = ()


CostedAt = Callable[[Graph], Mapping[str, Graph]]
"""The graph annotated for each kind of device, by its name."""


def decide(
    wish: Wish,
    graph: Graph,
    cluster: Cluster,
    costed_at: CostedAt,
    *,
    optimizer: str,
    memory_limit: Limit,
    recompute: Recomputation,
    tied: TiedWeights = "replicate",
) -> Decision:
    """Takes the wish as it is, or searches for what it leaves open.

    Raises:
        ArgumentError: the numbers do not go together.
        InfeasibleError: nothing fits.
    """
    if not wish.searches:
        m, replicas = wish.n_microbatches, wish.replicas
        assert not isinstance(m, str) and not isinstance(replicas, str)  # "auto" searches
        return Decision(wish.schedule, m, replicas, rows_of(graph), recompute)
    if isinstance(memory_limit, Sequence):
        raise ArgumentError("the search needs one memory_limit for all devices; give a number")
    found = choices(_space(wish, graph, len(cluster.devices)))
    how = recompute if graph.training else "never"
    exact = cache(
        lambda rows: _costed(costed_at(with_rows(graph, rows)), cluster, optimizer, how, tied)
    )
    known = cache(lambda: {rows: exact(rows) for rows in _sampled(found)})
    least = min(device.usable_bytes for device in cluster.devices)
    setting = Setting(
        costed=cache(lambda rows: between(known(), rows) or exact(rows)),
        cluster=lambda replicas: pipeline_cluster(cluster, replicas),
        sums=lambda replicas: _sums(cluster, replicas),
        limit_bytes=least if memory_limit is None else memory_limit,
    )
    alternatives = search(found, setting)
    best = alternatives[0]
    return Decision(
        best.schedule,
        best.n_microbatches,
        best.replicas,
        best.rows,
        recompute if recompute != "auto" or best.recompute else "never",
        alternatives,
    )


def _space(wish: Wish, graph: Graph, n_devices: int) -> Space:
    m, replicas = wish.n_microbatches, None if wish.replicas == AUTO else int(wish.replicas)
    if m is None and wish.batch_size is None:  # schedules are compared at as many for all
        m = MICROBATCHES_PER_STAGE * n_devices // (replicas or 1)
    return Space(
        n_devices=n_devices,
        replicas=replicas,
        n_microbatches=None if isinstance(m, str) else m,
        schedule=None if wish.schedule == AUTO else str(wish.schedule),
        batch_size=wish.batch_size,
        rows=rows_of(graph),
        any_rows=rows_symbol(graph) is not None,
        training=graph.training,
    )


def _sums(cluster: Cluster, replicas: int) -> Callable[[float], float] | None:
    link = copies_link(cluster, replicas)
    return None if link is None else lambda n_bytes: copies_seconds(link, n_bytes, replicas)


def _sampled(found: Sequence[Choice]) -> list[int]:
    """The sizes of micro-batch that are costed op by op: the ends and the middle of many.

    A single row is not one of them: its ops may be others than those of several.
    """
    sizes = sorted({choice.rows for choice in found})
    if len(sizes) <= SAMPLES:
        return sizes
    several = [rows for rows in sizes if rows > 1]
    return [several[0], several[len(several) // 2], several[-1]]


def _costed(
    costed: Mapping[str, Graph],
    cluster: Cluster,
    optimizer: str,
    recompute: Recomputation,
    tied: TiedWeights,
) -> Costed:
    first = costed[cluster.devices[0].name]
    groups = recomputable(first) if recompute != "never" else ()
    again = recompute == "full"
    if again:
        costed = {name: recomputed(graph, groups) for name, graph in costed.items()}
    kinds = tuple(costed)
    # A stage for every device where devices differ, so that the problem has the times of each.
    n_stages = 1 if len(kinds) == 1 else len(cluster.devices)
    base = costed[cluster.devices[0].name]
    problem, clustering = build_problem(
        base,
        cluster=cluster,
        n_stages=n_stages,
        n_microbatches=1,
        in_flight=(1,) * n_stages,
        memory_limit=float("inf"),
        optimizer=optimizer,
        training=base.training,
        pins={},
        costed=costed,
        tied=tied,
    )
    # A stage that recomputes has all its gradients with the input half.
    halves = [
        0.0
        if again
        else sum(
            cost.backward_weight.seconds for op in ops if (cost := base.ops[op].cost) is not None
        )
        for ops in clustering.ops_of_cluster
    ]
    gradients = sum(w.type.hint_bytes for w in base.weights if w.trainable)
    held = float(problem.weight_bytes.sum())
    share = gradients / held if held and base.training else 0.0
    step = step_seconds(trained(base), optimizer, cluster.devices[0]) if base.training else 0.0
    a_byte = step / held if held else 0.0
    relief = None
    if groups and not again:
        relief = relief_of(list(costed.values()), clustering, groups)
    return Costed(problem, kinds, np.asarray(halves, dtype=np.float64), share, a_byte, relief)


def check_wish(wish: Wish, n_devices: int, pins: Mapping[str, int]) -> None:
    """Refuses what cannot be planned, before the model is traced.

    Raises:
        ArgumentError: the numbers do not go together, or there is no such schedule.
        ScheduleError: a text of actions is wrong.
    """
    m, replicas, batch_size = wish.n_microbatches, wish.replicas, wish.batch_size
    for name, value in {"n_microbatches": m, "replicas": replicas}.items():
        if isinstance(value, str) and value != AUTO:
            raise ArgumentError(f'{name} is {value!r}; give a number, or "auto"')
    counts = {"n_microbatches": m, "replicas": replicas, "batch_size": batch_size}
    for name, count in counts.items():
        if not isinstance(count, int | str | None) or (isinstance(count, int) and count < 1):
            raise ArgumentError(f"{name} is {count}; give a whole number, 1 or more")
    if isinstance(replicas, int) and n_devices % replicas:
        raise ArgumentError(
            f"{n_devices} devices cannot be {replicas} equal pipelines; take replicas that divide "
            "the number of devices"
        )
    if batch_size is None and AUTO in (m, replicas):
        raise ArgumentError(
            'n_microbatches="auto" and replicas="auto" need batch_size, the rows of a step over '
            "all replicas"
        )
    if wish.searches and wish.schedule not in (*SCHEDULES, AUTO):
        raise ArgumentError(
            "the search weighs built-in schedules; with one of your own give n_microbatches and "
            "replicas as numbers and no batch_size"
        )
    if wish.searches and pins:
        raise ArgumentError(
            "pins name stages, whose number the search chooses; give the schedule, n_microbatches "
            "and replicas without batch_size"
        )
    if not wish.searches and not isinstance(m, str) and not isinstance(replicas, str):
        timetable(wish.schedule, n_devices // replicas, m, 1)
