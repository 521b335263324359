"""The command line: `stagecut plan | export | run | solve`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from stagecut.cli.app import app
from stagecut.cli.users import TRACEBACK
from stagecut.ir.errors import StagecutError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command; what a user can mend is shown as a short panel and ends with status 1.

    With STAGECUT_TRACEBACK set, it is raised instead.
    """
    try:
        app(None if arguments is None else list(arguments))
    except StagecutError as error:
        if os.environ.get(TRACEBACK):
            raise
        panel = Panel(
            Text(str(error)), title=type(error).__name__, title_align="left", border_style="red"
        )
        Console(stderr=True).print(panel)
        sys.exit(1)
