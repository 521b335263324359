"""What the README shows is what runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
QUICKSTART = ROOT / "examples" / "quickstart.py"


def _run(*command: str) -> list[float]:
    """The losses that the quick start prints."""
    result = subprocess.run(
        [sys.executable, *command, str(QUICKSTART)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")},
    )
    assert result.returncode == 0, result.stderr
    return [float(loss) for loss in re.findall(r"loss (\S+)", result.stdout)]


def test_the_quick_start_is_the_example_file() -> None:
    source = QUICKSTART.read_text()
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", README, re.S) if "train_step" in b]
    missing = [line for line in block.splitlines() if line not in source.splitlines()]
    assert missing == []


def test_three_lines_are_marked_as_changed() -> None:
    assert re.findall(r"# (\d)", QUICKSTART.read_text()) == ["1", "2", "3"]


def test_the_quick_start_trains_alike_under_torchrun_and_alone() -> None:
    alone = _run()
    under_torchrun = _run("-m", "torch.distributed.run", "--nproc-per-node", "2")
    assert len(alone) == 10
    assert alone[-1] < alone[0]
    assert under_torchrun == pytest.approx(alone, abs=2e-6)


def test_the_commands_and_their_options_exist() -> None:
    """Every `stagecut ...` line of the README is understood by the parser."""
    import typer
    from typer.main import get_command

    from stagecut.cli.app import app

    group = get_command(app)
    lines = re.findall(r"^stagecut (.+?)(?:\s{2,}#.*)?$", README, re.M)
    assert len(lines) >= 4
    for line in lines:
        name, *arguments = line.split()
        command = group.get_command(typer.Context(group), name)  # type: ignore[attr-defined]
        assert command is not None, name
        command.make_context(name, arguments)


def test_the_files_it_links_to_exist() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
