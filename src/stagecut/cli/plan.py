"""`stagecut plan`: what goes where, what it costs, how far from optimal it can be."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from stagecut.cli import options
from stagecut.cli.example import example_of
from stagecut.cli.outputs import check_output, writing
from stagecut.cli.planning import Request, make_plan
from stagecut.ir.errors import ArgumentError


def plan(
    model: options.Model,
    devices: options.Devices,
    cluster: options.Cluster = None,
    schedule: options.Schedule = "1f1b",
    microbatches: options.Microbatches = None,
    batch_size: options.BatchSize = None,
    replicas: options.Replicas = 1,
    method: options.Method = "auto",
    memory_limit: options.MemoryLimit = None,
    recompute: options.Recompute = "auto",
    cost: options.Cost = "roofline",
    optimizer: options.Optimizer = "adamw",
    dtype: options.Dtype = None,
    frontend: options.Frontend = "auto",
    tied: options.Tied = "replicate",
    allow_fewer: options.AllowFewer = False,
    rows: options.Rows = None,
    length: options.Length = None,
    save: options.Save = None,
    explain: Annotated[
        int | None,
        typer.Option(
            "--explain",
            metavar="K",
            min=0,
            show_default=False,
            help="Say instead why stage K is cut where it is: what moving its boundaries would do.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the figures as JSON instead of tables.")
    ] = False,
) -> None:
    """Plan a pipeline: where to cut the model, what each stage costs, how good the cut is.

    Needs no GPU and, for hf: models, no memory for the weights.

    Examples:

      stagecut plan hf:gpt2 -n 4

      stagecut plan my_models:build -n 8 --cluster H100 --memory-limit 24GiB

      stagecut plan hf:gpt2 -n 4 --explain 1

      stagecut plan hf:gpt2-xl -n 8 --batch-size 64 --replicas auto --schedule auto
    """
    if save is not None:
        check_output("--save", save)
    if explain is not None:
        _check_stage(explain, devices, schedule)
    made, _ = make_plan(
        model,
        example_of(rows, length, training=schedule != "forward"),
        Request(
            devices,
            cluster,
            schedule,
            microbatches,
            method,
            memory_limit,
            cost,
            recompute,
            dtype,
            batch_size,
            replicas,
            optimizer,
            frontend,
            tied,
            allow_fewer,
        ),
        weights=False,
    )
    if save is not None:
        with writing("--save", save):
            made.save(save)
    if as_json:
        from stagecut.report.summary import summary

        typer.echo(json.dumps(summary(made.data), indent=1))
        return
    from stagecut.report import plan_table

    console = Console(highlight=False)
    if explain is not None:
        console.print(made.explain(explain), end="", markup=False)
        return
    console.print(plan_table(made.data, made.timeline()))
    if save is not None:
        console.print(f"Saved as {save}.")


def _check_stage(stage: int, n_devices: int, schedule: str) -> None:
    """Refuses a stage that no plan will have, as far as that is known before planning.

    Raises:
        ArgumentError: says which stages there will be.
    """
    from stagecut.partitioner.schedules import SCHEDULES
    from stagecut.timetables import STAGES_A_DEVICE

    n_stages = n_devices * STAGES_A_DEVICE.get(schedule, 1)
    if schedule in SCHEDULES and stage >= n_stages:
        raise ArgumentError(
            f"--explain {stage}: there will be no stage {stage}; stages are 0 to {n_stages - 1} "
            f"with {n_devices} devices and the schedule {schedule}"
        )
