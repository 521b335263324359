"""The arguments that several commands share, each explained once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Count = Any
"""A number of 1 or more, or `auto`; typer knows no such union."""


def count_or_auto(text: str) -> int | str:
    """The number, or the word."""
    if str(text) == "auto":
        return "auto"
    if not str(text).isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text!r} is no number of 1 or more, nor auto")
    return int(text)


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        help="[bold]module:function[/bold], a function in an importable module that returns the "
        "model, (model, args) or (model, args, kwargs), where args and kwargs are an example "
        "micro-batch; or [bold]hf:NAME[/bold], a transformers architecture with random weights "
        "(gpt2, gpt2-medium, gpt2-xl, bert-base, bert-large, vit-base, llama-2-7b, ..., or any "
        "model type with its default configuration); or [bold]hf:FOLDER[/bold], a local folder "
        "with a config.json and, if you like, weights. Nothing is downloaded.",
    ),
]
Devices = Annotated[
    int,
    typer.Option(
        "-n",
        "--devices",
        metavar="N",
        min=1,
        help="The number of devices. Each runs one stage, or two under the schedules interleaved, "
        "zb_v and dualpipe_v.",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME_OR_FILE",
        show_default=False,
        help="The devices to plan for: [bold]A100[/bold], H100, V100, T4, CPU, ..., nodes as "
        "[bold]dgx-h100[/bold], p4d, g5, or a [bold].toml[/bold] file that describes yours, as "
        "[bold]stagecut profile --links[/bold] writes. Without it: the GPUs of this machine, else "
        "A100s, and the plan says that it assumed them.",
    ),
]
Schedule = Annotated[
    str,
    typer.Option(
        "--schedule",
        metavar="NAME",
        help="The order of the work: [bold]1f1b[/bold] (little memory), [bold]gpipe[/bold] (all "
        "forwards, then all backwards), [bold]forward[/bold] (inference), or interleaved, "
        "zero_bubble, zb_v, dualpipe_v (smaller bubbles), folded (METIS's parts, some of several "
        "stages). [bold]auto[/bold] takes the fastest that fits.",
    ),
]
Microbatches = Annotated[
    Count | None,
    typer.Option(
        "--microbatches",
        "-m",
        metavar="M",
        parser=count_or_auto,
        show_default="4 a stage",
        help="Micro-batches a step; [bold]auto[/bold] searches, with --batch-size.",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        metavar="ROWS",
        min=1,
        show_default=False,
        help="Rows of a step over all replicas; the micro-batches share them.",
    ),
]
Replicas = Annotated[
    Count,
    typer.Option(
        "--replicas",
        metavar="R",
        parser=count_or_auto,
        help="Copies of the pipeline, each on its share of the devices and of the batch; "
        "[bold]auto[/bold] searches, with --batch-size.",
    ),
]
Method = Annotated[
    str,
    typer.Option(
        "--method",
        metavar="NAME",
        help="How to cut: [bold]dp[/bold], [bold]metis[/bold], [bold]exact[/bold] (slow, proves "
        "the optimum), [bold]uniform[/bold] (equal numbers of ops, for comparison) or "
        "[bold]auto[/bold], which tries what is worth it and keeps the best.",
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        show_default="the device's memory",
        help="The most each device may hold, as [bold]24GiB[/bold].",
    ),
]
Recompute = Annotated[
    str,
    typer.Option(
        "--recompute",
        metavar="WHAT",
        help="What the backward computes again instead of keeping it: [bold]auto[/bold], as many "
        "blocks as memory needs; [bold]never[/bold]; [bold]full[/bold], every block.",
    ),
]
Cost = Annotated[
    str,
    typer.Option(
        "--cost",
        metavar="SOURCE",
        help="Where ops' times come from: [bold]roofline[/bold], published rates of the device; "
        "[bold]measured[/bold], timed here; or a file of [bold]stagecut profile[/bold].",
    ),
]
Optimizer = Annotated[
    str,
    typer.Option(
        "--optimizer",
        metavar="NAME",
        help="Whose state is held and whose step is timed: sgd, momentum, adam, "
        "[bold]adamw[/bold], adafactor, adam8bit, none; with _master at the end, on float32 copies "
        "of 16-bit weights.",
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        show_default="as torch does by default",
        help="How float32 products run: [bold]float32[/bold] or [bold]tf32[/bold]; without it, "
        "TF32 in convolutions and recurrent layers alone.",
    ),
]
Tied = Annotated[
    str,
    typer.Option(
        "--tied",
        metavar="WHERE",
        help="A weight used in several places: [bold]replicate[/bold], held by every stage that "
        "uses it; [bold]colocate[/bold], all its users in one stage.",
    ),
]
Frontend = Annotated[
    str,
    typer.Option(
        "--frontend",
        metavar="NAME",
        help="How to trace: export, the whole model; symbolic, around modules that cannot be "
        "traced; recorded, with decisions by data as the example takes them, each checked in every "
        "step; [bold]auto[/bold], the first that works.",
    ),
]
AllowFewer = Annotated[
    bool,
    typer.Option("--allow-fewer", help="Leave devices out where a step is then faster."),
]
AllowImports = Annotated[
    bool,
    typer.Option(
        "--allow-imports",
        help="Let the stages import those of your classes that could not be traced.",
    ),
]
Rows = Annotated[
    int | None,
    typer.Option(
        "--rows",
        metavar="N",
        min=1,
        show_default="4, to run 2",
        help="hf: models only: rows of a micro-batch.",
    ),
]
Length = Annotated[
    int | None,
    typer.Option(
        "--length",
        metavar="N",
        min=2,
        show_default="the model's longest, at most 1024; to run 64",
        help="hf: language models only: tokens a row.",
    ),
]
Save = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", show_default=False, help="Write the plan as JSON."),
]
