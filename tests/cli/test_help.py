from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.support import stagecut


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((), ["plan", "export", "run", "solve", "stagecut plan hf:gpt2 -n 4"]),
        (("plan",), ["MODEL", "module:function", "hf:NAME", "--memory-limit", "--json", "--save"]),
        (("export",), ["MODEL", "--output", "safetensors"]),
        (("run",), ["MODEL_OR_FOLDER", "--steps", "torchrun"]),
        (("solve",), ["--devices", "--time-limit", "pipedream"]),
    ],
)
def test_help_names_what_a_newcomer_needs(command: tuple[str, ...], words: list[str]) -> None:
    result = stagecut(*command, "--help")
    assert result.returncode == 0
    text = " ".join(result.stdout.replace("│", " ").split())
    assert not [word for word in words if word not in text]


def test_help_loads_no_torch() -> None:
    code = (
        "import sys, stagecut.cli\n"
        "try: stagecut.cli.main(['plan', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_an_unknown_command_is_refused_with_status_2() -> None:
    result = stagecut("plam")
    assert result.returncode == 2
    assert "plan" in result.stderr
