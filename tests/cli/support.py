"""Runs the command line: in a process of its own, as users do, or in this one, which is quick."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stagecut.cli import main

ROOT = Path(__file__).parent.parent.parent


def stagecut(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, from the repository's top."""
    return subprocess.run(
        [sys.executable, "-m", "stagecut.cli", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "COLUMNS": "120", "OMP_NUM_THREADS": "1"},
    )


class Shell:
    """Runs commands in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self.capture = capture

    def run(self, *arguments: str) -> str:
        """The stdout of a command that succeeds."""
        status, out, err = self._invoke(*arguments)
        assert status == 0, (status, out, err)
        return out

    def refused(self, *arguments: str) -> str:
        """The panel of a command that fails with status 1, as one line; its stdout is empty."""
        status, out, err = self._invoke(*arguments)
        assert status == 1, (status, out, err)
        assert "Traceback" not in err
        assert out == ""
        return " ".join(err.replace("│", " ").split())

    def _invoke(self, *arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        captured = self.capture.readouterr()
        return caught.value.code, captured.out, captured.err
