"""Times the making, checking and simulation of large schedules; compares bubbles with their forms.

python benchmarks/schedules/simulate.py            the bubble tables, seconds
python benchmarks/schedules/simulate.py --large    and 1,024 micro-batches on 16 and 64 devices
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from fractions import Fraction

from rich.console import Console
from rich.table import Table

from stagecut.ir.schedule import StageEdge
from stagecut.ir.timeline import EdgeCost, StepCosts
from stagecut.partitioner.schedules import check, expand, in_flight, make_schedule, simulate

FORMS: dict[str, tuple[int, Callable[[int, int], Fraction]]] = {
    "gpipe": (1, lambda d, m: Fraction(d - 1, m + d - 1)),
    "1f1b": (1, lambda d, m: Fraction(d - 1, m + d - 1)),
    "interleaved": (2, lambda d, m: Fraction(d - 1, 2 * m + d - 1)),
    "zero_bubble": (1, lambda d, m: Fraction(d - 1, 3 * m + d - 1)),
    "zb_v": (2, lambda d, m: Fraction(d - 1, 6 * m + d - 1)),
    "dualpipe_v": (2, lambda d, m: Fraction(d - 1, 6 * m + d - 1)),
}
"""Stages a device, and the bubble share where forward and both halves take a second each."""


def uniform(k: int, transfer_seconds: float) -> StepCosts:
    ones, twos = (1.0,) * k, (2.0,) * k
    edges = (EdgeCost(s, s + 1, transfer_seconds, transfer_seconds) for s in range(k - 1))
    return StepCosts(ones, twos, ones, ones, ones, ones, (0.0,) * k, tuple(edges))


def chain(k: int) -> list[StageEdge]:
    return [StageEdge(s, s + 1, True) for s in range(k - 1)]


def bubbles(d: int, m: int, transfer_seconds: float) -> Table:
    table = Table(title=f"{d} devices, {m} micro-batches, F = I = W = 1 s")
    columns = [
        "closed form",
        "simulated",
        f"transfers {transfer_seconds} s",
        "one ahead",
        "in flight",
    ]
    for column in ["schedule", *columns]:
        table.add_column(column, justify="right")
    for name, (v, form) in FORMS.items():
        schedule = make_schedule(name, v * d, d, m)
        late, early = (expand(schedule, chain(v * d), ahead=ahead) for ahead in (0, 1))
        check(early)
        runs = [(late, 0.0), (late, transfer_seconds), (early, transfer_seconds)]
        shares = [simulate(run, uniform(v * d, t)).bubble_share for run, t in runs]
        cells = [f"{share:.4f}" for share in [float(form(d, m)), *shares]]
        table.add_row(name, *cells, str(max(in_flight(schedule))))
    return table


def large(name: str, d: int, v: int, m: int) -> Table:
    table = Table(title=f"{name}: {m:,} micro-batches, {d} devices, {v} stages each")
    for column in ["step", "seconds", "CPU seconds"]:
        table.add_column(column, justify="right")
    clock, cpu = time.perf_counter(), time.process_time()

    def lap(step: str) -> None:
        nonlocal clock, cpu
        now, now_cpu = time.perf_counter(), time.process_time()
        table.add_row(step, f"{now - clock:.2f}", f"{now_cpu - cpu:.2f}")
        clock, cpu = time.perf_counter(), time.process_time()

    schedule = make_schedule(name, v * d, d, m)
    lap("make")
    action_list = expand(schedule, chain(v * d), ahead=1)
    lap(f"expand to {sum(map(len, action_list.devices)):,} actions")
    timeline = simulate(action_list, uniform(v * d, 0.1))
    lap(f"simulate (bubble {timeline.bubble_share:.4f})")
    check(action_list)
    lap("check")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    table.caption = f"peak memory of the process {peak:.2f} GiB"
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true", help="also the largest schedule")
    arguments = parser.parse_args()
    console = Console(width=100)
    console.print(bubbles(4, 16, 0.2))
    console.print(bubbles(8, 64, 0.2))
    if arguments.large:
        console.print(large("interleaved", 16, 4, 1024))
        console.print(large("interleaved", 64, 4, 1024))


if __name__ == "__main__":
    main()
