"""`stagecut profile --links`: the cluster that is here, with its links measured."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessException, spawn

from stagecut.ir.clusterfile import dump_cluster, load_cluster
from stagecut.ir.device import Cluster
from stagecut.ir.errors import ArgumentError, RuntimeFailure, StagecutError
from stagecut.links import measured_cluster


def write_links(output: Path, n_ranks: int | None) -> Cluster | None:
    """Measures between the ranks that `torchrun` started, or `n_ranks` local processes.

    Returns the cluster that was written; None on all ranks but the first.

    Raises:
        ArgumentError: `n_ranks` under torchrun, or GPUs of which there are too few.
        RuntimeFailure: a process failed; the message has its words.
    """
    if "RANK" in os.environ:
        if n_ranks not in (None, int(os.environ["WORLD_SIZE"])):
            raise ArgumentError("torchrun says how many ranks there are; leave -n out")
        return _measure(output, None)
    gpus = torch.cuda.device_count()
    n_ranks = n_ranks or gpus or 2
    if gpus and n_ranks > gpus:
        raise ArgumentError(f"there are {gpus} GPUs here, not {n_ranks}")
    with tempfile.TemporaryDirectory(prefix="stagecut-") as folder:
        try:
            spawn(_work, args=(n_ranks, folder, output), nprocs=n_ranks)  # type: ignore[no-untyped-call]
        except ProcessException as error:
            said = Path(folder) / "error"
            raise RuntimeFailure(said.read_text() if said.exists() else str(error)) from error
    return load_cluster(output)


def _work(rank: int, n_ranks: int, folder: str, output: Path) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(n_ranks))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    torch.set_num_threads(1)
    try:
        _measure(output, f"file://{folder}/meet")
    except StagecutError as error:
        (Path(folder) / "error").write_text(str(error))
        raise


def _measure(output: Path, meeting: str | None) -> Cluster | None:
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=world_size)
    try:
        made = measured_cluster()
    finally:
        dist.destroy_process_group()
    if rank:
        return None
    output.write_text(dump_cluster(made))
    return made
