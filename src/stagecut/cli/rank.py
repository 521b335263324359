"""One process of `stagecut run`: its share of the pipeline, trained on random data."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console

import stagecut
from stagecut.cli.batches import Bounds, random_batch
from stagecut.cli.compare import comparison, error_text, figures, optimizer_seconds
from stagecut.cli.example import Example
from stagecut.cli.models import load_model
from stagecut.cli.peak import Watched
from stagecut.frontend.trees import flatten
from stagecut.ir.errors import StagecutError
from stagecut.ir.plan import Plan, load_plan
from stagecut.ir.timeline import Timeline
from stagecut.pipe import Pipeline
from stagecut.prediction import predict
from stagecut.report.units import seconds_text

LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True)
class Job:
    """What every process of one run is told."""

    spec: str | None
    """The model; None where `source` is an export folder."""
    example: Example
    source: Path
    """The saved plan, or the export folder."""
    bounds: Bounds
    """Of the model's integer inputs."""
    steps: int
    folder: Path
    """Where processes meet, and where they leave errors."""
    world_size: int
    compare: bool = False
    """Whether predictions are to be compared with what happens."""
    allow_imports: bool = False
    """Whether an export folder's stages may import the user's classes."""


@dataclass(frozen=True, slots=True)
class StepFigures:
    """One step as its first process saw it."""

    step: int
    loss: float
    seconds: float
    busy_seconds: tuple[float, ...]
    """Processor time that each process spent, in rank order."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What one process took for a step."""

    seconds: float
    """Forward, backward and the optimizer's step."""
    optimizer_seconds: float
    busy_seconds: float
    """Processor time."""


def work(rank: int, job: Job) -> None:
    """Runs one process to its end; rank 0 prints a line a step.

    What the user can mend is left in the job's folder for the parent, which shows it; any other
    exception keeps its traceback.
    """
    torch.set_num_threads(1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group(
        "gloo", init_method=f"file://{job.folder}/meet", rank=rank, world_size=job.world_size
    )
    try:
        for figures in _steps(rank, job):
            if rank == 0:
                _show(figures)
    except StagecutError as error:
        (job.folder / f"error-{rank}").write_text(str(error))
        sys.exit(1)
    finally:
        dist.destroy_process_group()


def mean_loss(output: Any) -> torch.Tensor:
    """The model's own loss where its output has one, else the mean square of its outputs."""
    own = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor) and own.ndim == 0:
        return own
    leaves = [leaf for leaf in flatten(output)[0] if isinstance(leaf, torch.Tensor)]
    squares = [leaf.square().mean() for leaf in leaves if leaf.is_floating_point()]
    return torch.stack(squares).mean()


def _steps(rank: int, job: Job) -> Iterator[StepFigures]:
    plan_file = job.source / "plan.json" if job.spec is None else job.source
    plan = load_plan(plan_file.read_text())
    pipe = _pipe(job)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=LEARNING_RATE)
    timelines, taken = [], []
    for step in range(job.steps):
        batch = random_batch(plan.graph, job.bounds, plan.n_microbatches, seed=step)
        started, busy = time.perf_counter(), time.process_time()
        loss = pipe.train_step(**batch)
        stepping = time.perf_counter()
        optimizer.step()
        optimizing = time.perf_counter() - stepping
        optimizer.zero_grad()
        seconds, busy = time.perf_counter() - started, time.process_time() - busy
        everyone = [Taken(0.0, 0.0, 0.0)] * job.world_size
        dist.all_gather_object(everyone, Taken(seconds, optimizing, busy))
        taken.append(everyone)
        if job.compare:
            timelines.append(pipe.last_timeline())
        yield StepFigures(step, float(loss), seconds, tuple(each.busy_seconds for each in everyone))
    if job.compare:
        peaks = _peaks(pipe, optimizer, batch, job.world_size)
        _compare(plan, timelines[1:] or timelines, taken[1:] or taken, peaks)


def _peaks(
    pipe: Pipeline, optimizer: torch.optim.Optimizer, batch: dict[str, Any], world_size: int
) -> list[float]:
    """The peak memory of one more step, by rank."""
    states = (t for state in optimizer.state.values() for k, t in state.items() if k != "step")
    buffers = (b for r in pipe.runtime.runners.values() for b in r.module.buffers())
    inputs = [leaf for leaf in flatten(batch)[0] if isinstance(leaf, torch.Tensor)]
    with Watched((*pipe.parameters(), *buffers, *states), inputs) as watched:
        pipe.train_step(**batch)
        optimizer.step()
        optimizer.zero_grad()
    peaks: list[float] = [0.0] * world_size
    dist.all_gather_object(peaks, float(watched.peak_bytes))
    return peaks


def _compare(
    plan: Plan,
    timelines: Sequence[Timeline],
    taken: Sequence[Sequence[Taken]],
    peaks: Sequence[float],
) -> None:
    """Prints predicted and measured on rank 0; a step is as long as its slowest process takes."""
    if dist.get_rank():
        return
    expected = predict(plan)
    console = Console(highlight=False)
    console.print()
    predicted = figures(
        [expected], expected.peak_bytes, optimizer_seconds(expected), recorded=False
    )
    ranks = range(len(peaks))
    optimizing = [median(step[rank].optimizer_seconds for step in taken) for rank in ranks]
    console.print(comparison(predicted, figures(timelines, peaks, optimizing, recorded=True)))
    step = median(max(each.seconds for each in step) for step in taken)
    console.print(
        f"step: predicted {seconds_text(expected.step_seconds)}, measured {seconds_text(step)} "
        f"(median of {len(timelines)}), error {error_text(expected.step_seconds, step)}"
    )


def _pipe(job: Job) -> Pipeline:
    if job.spec is None:
        return stagecut.pipeline(job.source, loss_fn=mean_loss, allow_imports=job.allow_imports)
    torch.manual_seed(0)
    model = load_model(job.spec, job.example, weights=True).model
    return stagecut.pipeline(stagecut.Plan.load(job.source), model, loss_fn=mean_loss)


def _show(figures: StepFigures) -> None:
    busy = "  ".join(f"{seconds:8.3f}" for seconds in figures.busy_seconds)
    print(f"{figures.step:4d}  {figures.loss:12.6f}  {figures.seconds:8.3f}  {busy}", flush=True)
