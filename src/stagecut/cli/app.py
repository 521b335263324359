"""The commands, put together."""

from __future__ import annotations

import typer

from stagecut.cli.export import export
from stagecut.cli.plan import plan
from stagecut.cli.profile import profile
from stagecut.cli.run import run
from stagecut.cli.solve import solve

app = typer.Typer(
    name="stagecut",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Cut a PyTorch model into pipeline stages, see how good the cut is, and run it.\n\n"
    "Start with [bold]stagecut plan hf:gpt2 -n 4[/bold]: it needs no GPU and no weights.",
)
for command in (plan, export, run, profile, solve):
    app.command(no_args_is_help=True)(command)
