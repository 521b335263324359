"""Failures of a stage, told with the rank, the micro-batch and the user's line."""

from __future__ import annotations

import contextlib
import linecache
import traceback
from collections.abc import Iterator

from stagecut.ir.errors import RuntimeFailure, StagecutError
from stagecut.ir.schedule import Compute

_PHASES = {"F": "forward", "B": "backward", "I": "backward (inputs)", "W": "backward (weights)"}


@contextlib.contextmanager
def failing_action(device: int, action: Compute) -> Iterator[None]:
    """Names the action in whatever its execution raises."""
    try:
        yield
    except StagecutError:
        raise
    except Exception as error:
        where = user_line(error)
        raise RuntimeFailure(
            f"rank {device}, stage {action.stage}, micro-batch {action.microbatch}, "
            f"{_PHASES[action.phase.value]}: {type(error).__name__}: {error}"
            + (f"\n  from {where}" if where else "")
        ) from error


def user_line(error: BaseException) -> str:
    """The module path and the user's line of the generated statement that failed, if one did."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith("<stagecut stage_") and frame.lineno is not None:
            for number in range(frame.lineno - 1, 0, -1):
                line = linecache.getline(frame.filename, number).strip()
                if line.startswith("#"):
                    return f"{line[1:].strip()}: {frame.line}"
    return ""
