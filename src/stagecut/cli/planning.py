"""From the arguments of a command to a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from stagecut.cli.example import Example
from stagecut.cli.models import Loaded, load_model

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


def make_plan(
    spec: str, example: Example, request: Request, *, weights: bool
) -> tuple[Plan, Loaded]:
    """Loads the model that `spec` names and cuts it.

    Progress goes to stderr, so that stdout holds the answer alone.

    Raises:
        StagecutError: the model cannot be found, traced or cut.
    """
    with Console(stderr=True).status(f"Loading {spec} ...") as status:
        import stagecut

        loaded = load_model(spec, example, weights=weights)
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
            training=request.schedule != "forward",
        )
    return plan, loaded
