"""`stagecut solve`: cut a published partitioning problem, no model needed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from stagecut.cli.files import PROBLEM, kind_of
from stagecut.cli.options import Method
from stagecut.ir.errors import ArgumentError

Format = Literal["auto", "placement", "pipedream", "stagecut"]
"""As in `stagecut.partitioner.workloads`, which takes long to import."""


def solve(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The problem: JSON, or a PipeDream graph.txt.")
    ],
    devices: Annotated[
        int,
        typer.Option(
            "--devices",
            "-n",
            min=1,
            help="Stages: at most this many, in our own format exactly as many.",
        ),
    ],
    method: Method = "auto",
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=0.1, help="Seconds after which to stop.")
    ] = 10.0,
    format: Annotated[
        Format,
        typer.Option("--format", help="The file's format. [bold]auto[/bold] tells them apart."),
    ] = "auto",
    bandwidth: Annotated[
        float | None,
        typer.Option(
            "--bandwidth",
            show_default=False,
            help="Bytes a second; PipeDream files need it, no others have it.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole answer as JSON, nothing else.")
    ] = False,
) -> None:
    """Cut a partitioning problem from a file into pipeline stages, and say how good the cut is.

    Reads the JSON published with "Efficient Algorithms for Device Placement of DNN Graph
    Operators" (NeurIPS 2020), the profiles published with PipeDream, and a simple format of our
    own, described in docs/problem-format.md.
    """
    seems, taker = kind_of(str(file))
    if seems not in ("", PROBLEM):
        raise ArgumentError(
            f"{file} is {seems}, and solve takes a partitioning problem. It is for {taker}"
        )
    from stagecut.partitioner.workloads import solve_file
    from stagecut.report.units import percent_text

    with _printing_to_stderr():
        answer = solve_file(file, devices, method, time_limit, format, bandwidth)
    if as_json:
        typer.echo(json.dumps(answer))
        return
    stages = len(set(answer["assignment"].values()))
    proved = "optimal: proved" if answer["optimal"] else f"gap {percent_text(answer['gap'])}"
    Console(highlight=False).print(
        f"{len(answer['assignment'])} nodes in {stages} stages by {answer['method']}: "
        f"bottleneck {answer['bottleneck']:.6g}, lower bound {answer['lower_bound']:.6g} "
        f"({proved}), {answer['seconds']:.2f} s"
    )


@contextmanager
def _printing_to_stderr() -> Iterator[None]:
    """What METIS and HiGHS print to the process's standard output goes to its errors instead."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
