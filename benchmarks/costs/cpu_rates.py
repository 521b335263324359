"""Measures the figures of the `CPU` device and of its loopback link, on one thread.

python benchmarks/costs/cpu_rates.py
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

REPEATS = 15


def median_seconds(code: Callable[[], object], repeats: int = REPEATS) -> float:
    code()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        code()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def matrix_rate(n: int) -> float:
    a, b = torch.randn(n, n), torch.randn(n, n)
    return 2 * n**3 / median_seconds(lambda: a @ b)


def copy_rate(n_bytes: int) -> float:
    source = torch.randn(n_bytes // 4)
    target = torch.empty_like(source)
    return 2 * n_bytes / median_seconds(lambda: target.copy_(source))


def launch_seconds(count: int = 1000) -> float:
    x = torch.randn(4)
    return median_seconds(lambda: [x.add(1) for _ in range(count)]) / count


def _rank(rank: int, store: str, sizes: tuple[int, ...], results: multiprocessing.Queue) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for size in sizes:
        tensor = torch.zeros(size, dtype=torch.uint8)

        def there_and_back(tensor: torch.Tensor = tensor) -> None:
            for sender in (0, 1):
                if rank == sender:
                    dist.send(tensor, 1 - rank)
                else:
                    dist.recv(tensor, 1 - rank)

        seconds = median_seconds(there_and_back) / 2
        if rank == 0:
            results.put((size, seconds))
    dist.destroy_process_group()


def ping_pong(sizes: tuple[int, ...]) -> list[tuple[int, float]]:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        ranks = [context.Process(target=_rank, args=(r, store, sizes, results)) for r in (0, 1)]
        for process in ranks:
            process.start()
        found = [results.get(timeout=60) for _ in sizes]
        for process in ranks:
            process.join()
    return found


def main() -> None:
    torch.set_num_threads(1)
    for n in (512, 1024, 2048):
        print(f"matrix product {n:5d}: {matrix_rate(n) / 1e9:7.1f} GFLOP/s float32")
    print(f"copy of 64 MiB       : {copy_rate(64 * 2**20) / 1e9:7.1f} GB/s read and written")
    print(f"one small kernel     : {launch_seconds() * 1e6:7.1f} µs")
    for size, seconds in ping_pong((1, 2**16, 2**20, 2**24)):
        rate = size / seconds / 1e9
        print(f"gloo, {size:9d} bytes: {seconds * 1e6:7.1f} µs, {rate:6.2f} GB/s")


if __name__ == "__main__":
    main()
