"""`stagecut run`: the pipeline on local processes, for a look at it and as a check."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stagecut.cli import options
from stagecut.cli.example import Example, example_of
from stagecut.cli.planning import Request, make_plan
from stagecut.ir.errors import ArgumentError


def run(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_FOLDER",
            show_default=False,
            help="A MODEL as for [bold]stagecut plan[/bold] (module:function, hf:NAME, hf:FOLDER), "
            "or a folder that [bold]stagecut export[/bold] wrote.",
        ),
    ],
    devices: options.Devices,
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", min=1, help="Training steps to run.")
    ] = 5,
    schedule: options.Schedule = "1f1b",
    microbatches: options.Microbatches = None,
    cluster: options.Cluster = "CPU",
    method: options.Method = "auto",
    memory_limit: options.MemoryLimit = None,
    recompute: options.Recompute = "auto",
    cost: options.Cost = "roofline",
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Say how well the plan predicted each stage's times and memory."
        ),
    ] = False,
    frontend: options.Frontend = "auto",
    tied: options.Tied = "replicate",
    allow_imports: options.AllowImports = False,
    rows: options.Rows = None,
    length: options.Length = None,
) -> None:
    """Train a pipeline for a few steps on this machine: one process a device, on random data.

    Prints the loss and the seconds of each step, and the processor time of every process. The loss
    is the model's own where its output has one, else the mean square of its outputs. For real
    training write a script and start it with torchrun: the README has one. With --compare the first
    step is not counted, and one more is run to watch its memory.

    Examples:

      stagecut run hf:gpt2 -n 2 --steps 3

      stagecut run stages/ -n 4

      stagecut run hf:gpt2 -n 2 --compare --cost measured
    """
    if schedule == "forward":
        raise ArgumentError("run trains, and the schedule forward is of inference; take another")
    example = example_of(rows, length, training=True, usual=(2, 64))
    if (Path(model) / "plan.json").is_file():
        if example.asked:
            raise ArgumentError(
                f"{model} was exported with its rows and lengths; leave out "
                f"{' and '.join(example.asked)}, or export the model again"
            )
        _run_export(Path(model), devices, steps, compare, allow_imports)
    else:
        request = Request(
            devices, cluster, schedule, microbatches, method, memory_limit, cost, recompute,
            frontend=frontend, tied=tied,
        )  # fmt: skip
        _run_model(model, example, request, steps, compare)


def _run_export(source: Path, n_given: int, steps: int, compare: bool, allow_imports: bool) -> None:
    from stagecut.ir.plan import load_plan

    n_devices = max(load_plan((source / "plan.json").read_text()).device_of_stage) + 1
    if n_devices != n_given:
        raise ArgumentError(
            f"{source} was exported for {n_devices} devices; run it with -n {n_devices}, or export "
            "the model again"
        )
    from stagecut.cli.launch import Job, launch

    with tempfile.TemporaryDirectory(prefix="stagecut-") as folder:
        launch(
            Job(
                None, Example(0, None), source, {}, steps, Path(folder), n_devices, compare,
                allow_imports,
            )
        )  # fmt: skip


def _run_model(spec: str, example: Example, request: Request, steps: int, compare: bool) -> None:
    # One thread, as its processes will have, so that measured times hold for them.
    plan, loaded = make_plan(spec, example, request, weights=True, n_threads=1)
    from stagecut.cli.batches import example_bounds
    from stagecut.cli.launch import Job, launch
    from stagecut.report.plan import verdict

    bounds = example_bounds(loaded)
    del loaded  # each process builds its own
    Console(highlight=False).print(verdict(plan.data), end="\n\n")
    with tempfile.TemporaryDirectory(prefix="stagecut-") as name:
        folder = Path(name)
        plan.save(folder / "plan.json")
        source = folder / "plan.json"
        launch(Job(spec, example, source, bounds, steps, folder, request.n_devices, compare))
