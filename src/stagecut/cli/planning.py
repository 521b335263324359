"""From the arguments of a command to a plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from stagecut.cli.example import Example
from stagecut.cli.models import Loaded, load_model
from stagecut.ir.errors import ArgumentError

if TYPE_CHECKING:
    from stagecut import Plan


@dataclass(frozen=True, slots=True)
class Request:
    """What a command asks `partition` for; each field is one option."""

    n_devices: int
    cluster: str | None
    schedule: str
    n_microbatches: int | str | None
    method: str
    memory_limit: str | None
    cost: str = "roofline"
    recompute: str = "auto"
    dtype: str | None = None
    batch_size: int | None = None
    replicas: int | str = 1
    optimizer: str = "adamw"
    frontend: str = "auto"
    tied: str = "replicate"
    allow_fewer: bool = False


def make_plan(
    spec: str, example: Example, request: Request, *, weights: bool, n_threads: int | None = None
) -> tuple[Plan, Loaded]:
    """Loads the model that `spec` names and cuts it, on `n_threads`; None for torch's own number.

    Progress goes to stderr, so that stdout holds the answer alone.

    Raises:
        StagecutError: the model cannot be found, traced or cut.
    """
    with Console(stderr=True).status(f"Loading {spec} ...") as status:
        _check(request)
        import stagecut

        loaded = load_model(spec, example, weights=weights)
        if n_threads is not None:
            import torch

            torch.set_num_threads(n_threads)
        status.update(f"Tracing and cutting {spec} ...")
        plan = stagecut.partition(
            loaded.model,
            request.n_devices,
            loaded.args,
            dict(loaded.kwargs or {}),
            cluster=request.cluster,
            schedule=request.schedule,
            n_microbatches=request.n_microbatches,
            method=request.method,
            memory_limit=request.memory_limit,
            recompute=request.recompute,  # type: ignore[arg-type]
            cost=request.cost,
            dtype=request.dtype,
            batch_size=request.batch_size,
            replicas=request.replicas,
            optimizer=request.optimizer,
            frontend=request.frontend,
            tied=request.tied,  # type: ignore[arg-type]
            allow_fewer=request.allow_fewer,
            training=request.schedule != "forward",
        )
    return plan, loaded


def _check(request: Request) -> None:
    """Refuses what can be told before torch is imported and a model is made.

    Raises:
        ArgumentError: says what is not known, and what is.
    """
    from stagecut.clusters import find_cluster
    from stagecut.limits import parse_limit
    from stagecut.partitioner import METHODS
    from stagecut.partitioner.schedules import SCHEDULES
    from stagecut.timetables import timetable

    find_cluster(request.cluster or "cpu", request.n_devices).running(request.dtype)
    parse_limit(request.memory_limit)
    if request.method not in METHODS:
        raise ArgumentError(f"no method {request.method!r}; the methods are {', '.join(METHODS)}")
    named = "\n" not in request.schedule and not Path(request.schedule).exists()
    if named and request.schedule not in ("auto", *SCHEDULES):
        timetable(request.schedule, request.n_devices, None, 1)
