"""`stagecut profile`: the times of a model's ops here, as a file to plan with anywhere."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from stagecut.cli import options
from stagecut.cli.example import example_of
from stagecut.cli.models import Loaded, load_model
from stagecut.cli.outputs import check_output, writing
from stagecut.ir.errors import ArgumentError

if TYPE_CHECKING:
    from stagecut.passes import Profile


def profile(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            show_default=False,
            help="As for [bold]stagecut plan[/bold]; left out with --links.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            show_default="profile.json, with --links cluster.toml",
            help="Where the times go; those it has are kept.",
        ),
    ] = None,
    rows: options.Rows = None,
    length: options.Length = None,
    optimizer: options.Optimizer = "adamw",
    inference: Annotated[
        bool, typer.Option("--inference", help="Time the model in eval mode, forward only.")
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", metavar="N", min=1, show_default="all", help="CPU only: threads of an op."
        ),
    ] = None,
    links: Annotated[
        bool,
        typer.Option(
            "--links",
            help="Time no model but messages between devices: those of the ranks that torchrun "
            "started, else of local processes. Writes a cluster for --cluster.",
        ),
    ] = False,
    ranks: Annotated[
        int | None,
        typer.Option(
            "-n",
            metavar="N",
            min=2,
            show_default="the GPUs here, else 2",
            help="--links only: how many local processes.",
        ),
    ] = None,
) -> None:
    """Time each distinct op of a model on this machine's GPU, or its CPU where it has none.

    And the optimizer's step of each distinct weight. Plan with the file here or elsewhere, for the
    same model with the same rows and length. What does not fit in memory here is left out, and
    planned by published rates.

    Examples:

      stagecut profile hf:gpt2 -o gpt2.json

      stagecut plan hf:gpt2 -n 4 --cost gpt2.json

      torchrun --nproc-per-node 8 -m stagecut.cli profile --links -o here.toml

      stagecut plan hf:gpt2 -n 8 --cluster here.toml
    """
    if links:
        if model is not None:
            raise ArgumentError("--links times no model; leave MODEL out, or --links")
        _write_links(output or Path("cluster.toml"), ranks)
        return
    if model is None or ranks is not None:
        raise ArgumentError("name a MODEL, or give --links; -n goes with --links alone")
    _write_times(model, output or Path("profile.json"), rows, length, optimizer, inference, threads)


def _write_links(output: Path, ranks: int | None) -> None:
    from stagecut.cli.links import write_links

    check_output("-o", output)
    made = write_links(output, ranks)
    if made is None:
        return
    from stagecut.report.units import seconds_text

    console = Console(highlight=False)
    for a, b in combinations(range(len(made.devices)), 2):
        link = made.link(a, b)
        console.print(
            f"ranks {a} and {b}: {seconds_text(link.latency_seconds)}, "
            f"{link.bytes_per_second / 1e9:.3g} GB/s"
        )
    console.print(f"Plan with --cluster {output}", soft_wrap=True)


def _write_times(
    model: str,
    output: Path,
    rows: int | None,
    length: int | None,
    optimizer: str,
    inference: bool,
    threads: int | None,
) -> None:
    check_output("-o", output)
    example = example_of(rows, length, training=not inference)
    with Console(stderr=True).status(f"Loading {model} ..."):
        loaded = load_model(model, example, weights=False)
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    with writing("-o", output):
        known, made = _measured(loaded, not inference, optimizer, output)
    Console(highlight=False).print(
        f"{made - known} ops and optimizer steps timed, {made} in all. "
        f"Plan with stagecut plan {model} -n N --cost {output}",
        soft_wrap=True,
    )


def _measured(loaded: Loaded, training: bool, optimizer: str, output: Path) -> tuple[int, int]:
    """Writes the file; the numbers of times that it had and has."""
    import torch

    from stagecut.frontend import trace
    from stagecut.ir.devices import cluster
    from stagecut.opaque import opaque_modules
    from stagecut.passes import drop_dead, load_profile, measure, out_of_place, save_profile

    if not (loaded.args or loaded.kwargs):
        raise ArgumentError(
            "profiling needs an example of one micro-batch: return (model, args) or "
            "(model, args, kwargs)"
        )
    known: Profile | None = load_profile(output) if output.exists() else None
    traced = trace(loaded.model, loaded.args, dict(loaded.kwargs or {}), training=training)
    graph = drop_dead(out_of_place(traced.graph))
    device = cluster(None if torch.cuda.is_available() else "CPU", 1).devices[0]
    opaque = opaque_modules(graph, loaded.model)
    with _bar() as progress:
        task = progress.add_task("", total=None)

        def show(done: int, total: int, target: str) -> None:
            progress.update(task, completed=done, total=total, description=target)

        made = measure(
            graph, device, opaque, training, optimizer=optimizer, cache=output, progress=show
        )
    save_profile(made, output)
    kept = known is not None and known.same_place(made)
    return len(known.timings) if known is not None and kept else 0, len(made.timings)


def _bar() -> Progress:
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
    return Progress(*columns, console=Console(stderr=True), transient=True)
