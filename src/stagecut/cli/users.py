"""What the user's own code raised, in a few lines: the exception, and their file and line."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stagecut.ir.errors import ArgumentError, StagecutError

TRACEBACK = "STAGECUT_TRACEBACK"
"""The environment variable that asks for whole tracebacks instead of panels."""
_OURS = str(Path(__file__).parents[1])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


@contextmanager
def told(what: str) -> Iterator[None]:
    """Inside, `what` runs, which is the user's code.

    Raises:
        ArgumentError: it raised; names the exception and the user's line.
    """
    try:
        yield
    except StagecutError:
        raise
    except (Exception, SystemExit) as error:
        lines = [f"{what} raised {type(error).__name__}: {_message(error)}", *_where(error)]
        hint = f"  {TRACEBACK}=1 in front of the command shows the whole traceback"
        raise ArgumentError("\n".join([*lines, hint])) from error


def _message(error: BaseException) -> str:
    text = str(error.msg if isinstance(error, SyntaxError) else error)
    return next((line for line in text.splitlines() if line.strip()), "no message")[:300]


def _where(error: BaseException) -> Iterator[str]:
    if isinstance(error, SyntaxError) and error.filename:
        yield f"  at {_short(error.filename)}:{error.lineno}"
        if error.text:
            yield f"    {error.text.strip()}"
        return
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_ours(f.filename)]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    for frame in (own or frames)[-1:]:
        yield f"  at {_short(frame.filename)}:{frame.lineno}, in {frame.name}"
        if frame.line:
            yield f"    {frame.line}"


def _is_ours(file: str) -> bool:
    return file.startswith((_OURS, "<"))


def _short(file: str) -> str:
    here = Path.cwd()
    return str(Path(file).relative_to(here)) if Path(file).is_relative_to(here) else file
