"""Part 3: the same training twice, unsplit and as a pipeline of two gloo processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import stagecut
from examples.demo.gpt import SmallGPT, next_character_loss
from examples.demo.text import batch, standard_library

STEPS, ROWS, TOKENS, MICROBATCHES, STAGES = 20, 16, 64, 4, 2
LOSS_TOLERANCE = 2e-6
"""A loss near 3 is held to 2.4e-7; the sums over a batch are associated differently."""
PARAMETER_TOLERANCE = 1e-4
"""AdamW has moved each parameter by up to STEPS x 3e-3 = 6e-2."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What one training leaves."""

    losses: list[float]
    parameters: dict[str, torch.Tensor]


def compare(folder: Path, console: Console) -> bool:
    """Trains both ways, prints the losses side by side; True if they agree."""
    torch.set_num_threads(1)  # as many as each process of the pipeline has
    plan = stagecut.partition(
        new_model(), STAGES, (torch.zeros(ROWS // MICROBATCHES, TOKENS, dtype=torch.long),),
        cluster="CPU", n_microbatches=MICROBATCHES,
    )  # fmt: skip
    plan.save(folder / "plan.json")
    for stage in plan.stages:
        console.print(f"  process {stage.rank}: {', '.join(stage.modules)}")
    console.print()
    with _progress(console) as progress:
        alone = train_unsplit(progress)
        piped = train_pipeline(folder, progress)
    return _report(alone, piped, console)


def new_model() -> SmallGPT:
    """The model at its start, the same in every process."""
    torch.manual_seed(0)
    return SmallGPT(context=TOKENS)


def new_optimizer(parameters: Any) -> torch.optim.Optimizer:
    """The same for both."""
    return torch.optim.AdamW(parameters, lr=3e-3)


def train_unsplit(progress: Progress) -> Trained:
    """The ordinary loop, in this process: the whole batch through the whole model."""
    task = progress.add_task("the unsplit model, one process", total=STEPS)
    text, model = standard_library(), new_model()
    optimizer, losses = new_optimizer(model.parameters()), []
    for step in range(STEPS):
        characters, following = batch(text, step, ROWS, TOKENS)
        loss = next_character_loss(model(characters), following)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        progress.advance(task)
    return Trained(losses, {name: p.detach() for name, p in model.named_parameters()})


def train_pipeline(folder: Path, progress: Progress) -> Trained:
    """The same loop on two processes, started here; each leaves the parameters of its stage."""
    task = progress.add_task("the pipeline, two processes", total=STEPS)
    queue = mp.get_context("spawn").SimpleQueue()
    processes = mp.spawn(pipeline_process, (folder, queue), nprocs=STAGES, join=False)
    losses: list[float] = []
    finished = False
    while not finished:
        finished = processes.join(timeout=0.1)
        while not queue.empty():
            losses.append(queue.get())
            progress.update(task, completed=len(losses))
    parts = [torch.load(folder / f"rank{rank}.pt") for rank in range(STAGES)]
    return Trained(losses, {name: p for part in parts for name, p in part.items()})


def pipeline_process(rank: int, folder: Path, queue: Any) -> None:
    """One of the two processes; under torchrun this would be the user's script."""
    torch.set_num_threads(1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=STAGES)
    plan = stagecut.Plan.load(folder / "plan.json")
    pipe = stagecut.pipeline(plan, new_model(), loss_fn=next_character_loss)
    text, optimizer = standard_library(), new_optimizer(pipe.parameters())
    for step in range(STEPS):
        characters, following = batch(text, step, ROWS, TOKENS)
        loss = pipe.train_step(characters, target=following)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            queue.put(float(loss))
    own = {name: parameter.detach() for name, parameter in pipe.named_parameters()}
    torch.save(own, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


def _report(alone: Trained, piped: Trained, console: Console) -> bool:
    table = Table("step", "unsplit", "pipeline", "difference", box=None, padding=(0, 3))
    for column in table.columns:
        column.justify = "right"
    differences = [abs(a - b) for a, b in zip(alone.losses, piped.losses, strict=True)]
    for step, (a, b, c) in enumerate(zip(alone.losses, piped.losses, differences, strict=True)):
        table.add_row(str(step + 1), f"{a:.7f}", f"{b:.7f}", f"{c:.1e}")
    console.print(table)
    same_names = set(alone.parameters) == set(piped.parameters)
    apart = max(
        float((p - piped.parameters[name]).abs().max()) for name, p in alone.parameters.items()
    )
    losses_agree = max(differences) <= LOSS_TOLERANCE
    parameters_agree = same_names and apart <= PARAMETER_TOLERANCE
    console.print(
        f"\nloss: largest difference {max(differences):.1e} (float32 rounding: at most "
        f"{LOSS_TOLERANCE:.0e})  {_mark(losses_agree)}"
    )
    console.print(
        f"final parameters: {len(alone.parameters)} tensors, largest difference {apart:.1e} "
        f"(at most {PARAMETER_TOLERANCE:.0e})  {_mark(parameters_agree)}\n"
    )
    return losses_agree and parameters_agree


def _mark(held: bool) -> str:
    return "[bold green]agrees[/]" if held else "[bold red]DIFFERS[/]"


def _progress(console: Console) -> Progress:
    columns = (TextColumn("  {task.description:<32}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=console)
