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


MODEL = "tests.cli.tiny:mlp"


@pytest.mark.parametrize(
    ("command", "too_slow"),
    [
        (["--help"], "numpy"),
        (["plan", "--help"], "numpy"),
        (["solve", "--help"], "numpy"),
        (["plan", "--nosuch"], "numpy"),
        (["plan", "no_such_module:build", "-n", "2"], "torch"),
        (["plan", "models.py", "-n", "2"], "torch"),
        (["run", "nosuch", "-n", "2"], "torch"),
        (["export", "no_such_module:build", "-n", "2", "-o", "stages"], "torch"),
        (["profile", "no_such_module:build"], "torch"),
        (["solve", "nosuch.json", "-n", "2"], "torch"),
        (["plan", MODEL, "-n", "2", "--cluster", "abacus"], "torch"),
        (["plan", MODEL, "-n", "2", "--schedule", "soon"], "torch"),
        (["plan", MODEL, "-n", "2", "--method", "magic"], "torch"),
        (["plan", MODEL, "-n", "2", "--dtype", "int8"], "torch"),
        (["run", MODEL, "-n", "2", "--memory-limit", "lots"], "torch"),
    ],
)
def test_what_needs_no_torch_does_not_import_it(command: list[str], too_slow: str) -> None:
    code = (
        "import sys, stagecut.cli\n"
        f"try: stagecut.cli.main({command!r})\n"
        "except SystemExit: pass\n"
        f"sys.exit({too_slow!r} in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_an_unknown_command_is_refused_with_status_2() -> None:
    result = stagecut("plam")
    assert result.returncode == 2
    assert "plan" in result.stderr
