"""Where a command is to write: told before the work that there is to write, not after it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stagecut.ir.errors import ArgumentError

_ELSE = "name a place that you may write to, with space left on it"


def check_output(option: str, path: Path, *, folder: bool = False) -> None:
    """Returns if `path` can be written.

    Args:
        option: The option that names it, for the words of an error.
        path: A file, whose folder has to exist.
        folder: Whether it is a folder instead, which is made with all above it.

    Raises:
        ArgumentError: it cannot be written; says why, and what to do.
    """
    with writing(option, path):
        _check(option, path, folder)


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """Inside, `path` is written, and what goes wrong with that is told.

    Raises:
        ArgumentError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise _refusal(option, path, f"{error.strerror or error}", _ELSE) from error


def _check(option: str, path: Path, folder: bool) -> None:
    if path.exists() and path.is_dir() != folder:
        what, remedy = (
            ("it is a file", "name a folder, or remove the file")
            if folder
            else ("it is a folder", f"name a file in it, as {option} {path / 'plan.json'}")
        )
        raise _refusal(option, path, what, remedy)
    if not folder and path.exists() and not os.access(path, os.W_OK):
        raise _refusal(option, path, "Permission denied", _ELSE)
    above = next(above for above in path.absolute().parents if above.exists())
    if not folder and above != path.absolute().parent:
        missing = path.parent
        raise _refusal(
            option, path, f"there is no folder {missing}", f"make it: mkdir -p {missing}"
        )
    if not path.exists() or folder:
        # Only trying tells: rights, read-only disks and folders of the system's own.
        with tempfile.TemporaryFile(dir=above):
            pass


def _refusal(option: str, path: Path, why: str, remedy: str) -> ArgumentError:
    return ArgumentError(f"{option} {path} cannot be written: {why}; {remedy}")
