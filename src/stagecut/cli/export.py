"""`stagecut export`: one readable .py and one .safetensors a stage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stagecut.cli import options
from stagecut.cli.example import example_of
from stagecut.cli.outputs import check_output, writing
from stagecut.cli.planning import Request, make_plan


def export(
    model: options.Model,
    devices: options.Devices,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER", help="Where the stages go.")
    ],
    cluster: options.Cluster = None,
    schedule: options.Schedule = "1f1b",
    microbatches: options.Microbatches = None,
    method: options.Method = "auto",
    memory_limit: options.MemoryLimit = None,
    frontend: options.Frontend = "auto",
    tied: options.Tied = "replicate",
    allow_fewer: options.AllowFewer = False,
    allow_imports: options.AllowImports = False,
    rows: options.Rows = None,
    length: options.Length = None,
) -> None:
    """Plan a pipeline and write its stages: one readable .py and one .safetensors each.

    The files need torch alone, and with --allow-imports your own classes. hf:NAME models get random
    weights; hf:FOLDER keeps the folder's.

    Example:

      stagecut export hf:gpt2 -n 4 -o stages/
    """
    check_output("-o", output, folder=True)
    plan, loaded = make_plan(
        model,
        example_of(rows, length, training=schedule != "forward"),
        Request(
            devices,
            cluster,
            schedule,
            microbatches,
            method,
            memory_limit,
            frontend=frontend,
            tied=tied,
            allow_fewer=allow_fewer,
        ),
        weights=True,
    )
    with writing("-o", output):
        plan.export(output, loaded.model, allow_imports=allow_imports)
    from stagecut.report.units import bytes_text

    console = Console(highlight=False)
    for path in sorted(output.iterdir()):
        console.print(f"{path}  {bytes_text(path.stat().st_size)}")
