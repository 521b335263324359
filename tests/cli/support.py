"""Runs the command line in a process of its own, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def stagecut(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stagecut.cli", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "COLUMNS": "120", "OMP_NUM_THREADS": "1"},
    )


def refused(*arguments: str, cwd: Path | None = None) -> str:
    """The panel of a command that fails with status 1: one line, no traceback, empty stdout."""
    result = stagecut(*arguments, cwd=cwd)
    assert result.returncode == 1, (result.returncode, result.stdout, result.stderr)
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    return " ".join(result.stderr.replace("│", " ").split())
