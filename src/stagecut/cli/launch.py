"""Starts the processes of `stagecut run` on this machine and waits for them."""

from __future__ import annotations

from pathlib import Path

from torch.multiprocessing.spawn import ProcessException, spawn

from stagecut.cli.rank import Job, work
from stagecut.ir.errors import RuntimeFailure

__all__ = ["Job", "launch"]


def launch(job: Job) -> None:
    """Runs `job.world_size` processes to their end; the first failure ends them all.

    Raises:
        RuntimeFailure: a process failed; what it said is in the message.
    """
    ranks = "  ".join(f"{f'rank {rank}':>8}" for rank in range(job.world_size))
    print(f"{'step':>4}  {'loss':>12}  {'seconds':>8}  {ranks}   (processor seconds)", flush=True)
    try:
        spawn(work, args=(job,), nprocs=job.world_size)  # type: ignore[no-untyped-call]
    except ProcessException as error:
        raise RuntimeFailure(_reasons(job.folder) or str(error)) from error


def _reasons(folder: Path) -> str:
    """What the processes left, each reason once."""
    texts = [path.read_text() for path in sorted(folder.glob("error-*"))]
    return "\n".join(dict.fromkeys(texts))
