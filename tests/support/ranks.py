"""Functions run on several real processes that form one gloo process group."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


@dataclass
class Ended:
    """How one rank ended."""

    result: Any = None
    error: str | None = None
    """`Type: message` of what it raised."""
    trace: str = ""


def run_ranks(
    world: int, function: Callable[..., Any], *args: Any, seconds: float = 120
) -> list[Ended]:
    """Runs function(rank, *args) on every rank of a new process group; module-level functions only.

    A rank that does not end in time is killed, and the test fails.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world):
            receiver, sender = context.Pipe(duplex=False)
            given = (rank, world, f"{folder}/store", sender, function, args)
            process = context.Process(target=_rank, args=given, daemon=True)
            process.start()
            sender.close()
            pipes.append(receiver)
            processes.append(process)
        try:
            return _collect(pipes, seconds)
        finally:
            for process in processes:
                process.join(5)
                if process.is_alive():
                    process.kill()


def results(ended: list[Ended]) -> list[Any]:
    """What the ranks returned; the test fails with the trace of the first that raised."""
    for rank, end in enumerate(ended):
        assert end.error is None, f"rank {rank}: {end.error}\n{end.trace}"
    return [end.result for end in ended]


def _collect(pipes: list[Connection], seconds: float) -> list[Ended]:
    ended: dict[int, Ended] = {}
    while len(ended) < len(pipes):
        left = [pipe for rank, pipe in enumerate(pipes) if rank not in ended]
        ready = wait(left, timeout=seconds)
        assert ready, f"ranks {sorted(set(range(len(pipes))) - set(ended))} hang"
        for pipe in ready:
            rank = pipes.index(pipe)  # type: ignore[arg-type]
            try:
                ended[rank] = pipes[rank].recv()
            except EOFError:
                ended[rank] = Ended(error="killed: the process ended without a word")
    return [ended[rank] for rank in range(len(pipes))]


def _rank(
    rank: int,
    world: int,
    store: str,
    sender: Connection,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    Path(store).parent.mkdir(exist_ok=True)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        sender.send(Ended(function(rank, *args)))
    except BaseException as error:
        sender.send(Ended(None, f"{type(error).__name__}: {error}", traceback.format_exc()))
