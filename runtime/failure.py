"""Failures of a stage, told with the rank, the micro-batch and the user's line."""

from __future__ import annotations

import contextlib
import linecache
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from stagecut.ir.errors import RuntimeFailure, StagecutError
from stagecut.ir.schedule import Compute

_NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<")
_TOO_FEW = "Expected more than 1 value per channel when training"
_FEWER = "Give the step more rows, or the pipeline fewer micro-batches (n_microbatches=)"
_PHASES = {"F": "forward", "B": "backward", "I": "backward (inputs)", "W": "backward (weights)"}


@contextlib.contextmanager
def failing_action(device: int, action: Compute, rows: int) -> Iterator[None]:
    """Names the action in whatever its execution raises, and the rows of its micro-batch."""
    try:
        yield
    except StagecutError:
        raise
    except Exception as error:
        where = user_line(error)
        raise RuntimeFailure(
            f"rank {device}, stage {action.stage}, micro-batch {action.microbatch} "
            f"({rows} row{'s' * (rows != 1)}), "
            f"{_PHASES[action.phase.value]}: {type(error).__name__}: {error}"
            + (f"\n  from {where}" if where else "")
            + (f"\n  {_FEWER}" if _TOO_FEW in str(error) else "")
        ) from error


def user_line(error: BaseException) -> str:
    """Where the user's own code failed; in a generated statement, its module path and line."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if frame.filename.startswith("<stagecut stage_") and frame.lineno is not None:
            for number in range(frame.lineno - 1, 0, -1):
                line = linecache.getline(frame.filename, number).strip()
                if line.startswith("#"):
                    return f"{line[1:].strip()}: {frame.line}"
    outside = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    last = outside[-1] if outside else None
    return f"{last.filename}:{last.lineno}, in {last.name}: {last.line}" if last else ""


class Notice:
    """The first failure of a pipeline, told to every rank."""

    def __init__(self, store: TCPStore) -> None:
        self.store = store

    def resolve(self, rank: int, error: Exception) -> StagecutError:
        """The error to raise on this rank: its own, or the one that another rank failed with.

        A rank whose peer failed sees a closed connection; the peer's own words are in the store.
        """
        told = error if isinstance(error, StagecutError) else None
        try:
            if told is not None:
                first = self.store.compare_set(_KEY, "", _describe(error)).decode()
                return told if first == _describe(error) else RuntimeFailure(first)
            self.store.wait([_KEY], _PATIENCE)
            return RuntimeFailure(self.store.get(_KEY).decode())
        except (RuntimeError, ValueError):
            # The store went with rank 0, or nobody left a word: a rank was killed.
            return told or RuntimeFailure(_lost(rank, error))


_KEY = "failure"
_PATIENCE = timedelta(seconds=3)


def _describe(error: Exception) -> str:
    cause = error.__cause__
    lines = traceback.format_exception(cause) if cause is not None else []
    return "\n".join([str(error), *(line.rstrip() for line in lines)])


def _lost(rank: int, error: Exception) -> str:
    return (
        f"rank {rank} lost its connection to another rank, which left no word of why: it was "
        f"killed (out of memory?) or its machine is gone. {type(error).__name__}: {error}"
    )
