"""A place that cannot be written is told before the work, with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagecut.cli.outputs import writing
from stagecut.ir.errors import ArgumentError
from tests.cli.support import Shell

# Is refused only once it is loaded, so another error comes first where nothing was loaded.
MODEL = "tests.cli.none:such"


@pytest.mark.parametrize(
    "command", [("plan", MODEL, "-n", "2", "--save"), ("profile", MODEL, "-o"),
                ("profile", "--links", "-o")]
)  # fmt: skip
def test_a_file_that_cannot_be_written(
    shell: Shell, tmp_path: Path, command: tuple[str, ...]
) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    for path, words in (
        (tmp_path / "no" / "x.json", "there is no folder"),
        (tmp_path / "no" / "x.json", "mkdir -p"),
        (tmp_path, "it is a folder; name a file in it"),
        (file / "x.json", "cannot be written"),
        (Path("/proc/self/x.json"), "cannot be written"),
    ):
        told = shell.refused(*command, str(path)).replace(" ", "")
        assert words.replace(" ", "") in told
        assert str(path) in told
    assert file.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_that_cannot_be_written(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    for path, words in (
        (file, "it is a file; name a folder"),
        (file / "stages", "cannot be written"),
        (Path("/proc/x/y"), "cannot be written"),
    ):
        told = shell.refused("export", MODEL, "-n", "2", "-o", str(path)).replace(" ", "")
        assert words.replace(" ", "") in told
        assert str(path) in told
    assert list(tmp_path.iterdir()) == [file]


def test_what_fails_in_the_end_is_told_too(tmp_path: Path) -> None:
    full = OSError(28, "No space left on device")
    with (
        pytest.raises(ArgumentError, match="cannot be written: No space left"),
        writing("--save", tmp_path / "x.json"),
    ):
        raise full
    assert not list(tmp_path.iterdir())
