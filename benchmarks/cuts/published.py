"""Every method on the published problems with proved optima: bottleneck over optimum, and seconds.

python benchmarks/cuts/published.py FOLDER [METHOD ...]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from stagecut.ir.errors import InfeasibleError
from stagecut.ir.problem import Problem
from stagecut.partitioner import solve
from stagecut.partitioner.network import contract
from stagecut.partitioner.workloads import read_network

METHODS = ("uniform", "dp", "metis", "auto", "exact")


def main() -> None:
    """One row a problem and number of devices, one column a method."""
    folder, methods = Path(sys.argv[1]), tuple(sys.argv[2:]) or METHODS
    print("| problem | devices |" + "".join(f" {m} | s |" for m in methods) + " gap |")
    print("|---|---|" + "---|---|" * len(methods) + "---|")
    for name, devices, problem, optimum in _cells(folder):
        row, gap = f"| {name} | {devices} |", float("inf")
        for method in methods:
            started = time.perf_counter()
            try:
                solution = solve(problem, method, 60.0)
            except InfeasibleError:
                row += " none | - |"
                continue
            reached = solution.evaluation.bottleneck_seconds / optimum
            row += f" {reached:.4f} | {time.perf_counter() - started:.1f} |"
            gap = min(gap, solution.gap)
        print(f"{row} {gap:.2%} |", flush=True)


def _cells(folder: Path) -> Iterator[tuple[str, int, Problem, float]]:
    plain = json.loads((folder / "optima.json").read_text())
    dear = json.loads((folder / "optima_transfer_x1000.json").read_text())
    tables = [(name, 1.0, entry["optimum_by_devices"]) for name, entry in plain.items()]
    tables += [(name, 1000.0, entry) for name, entry in dear.items()]
    for name, factor, table in tables:
        network = replace(read_network(folder / f"{name}.json"), seconds_per_byte=factor)
        label = name if factor == 1 else f"{name}, transfers x{factor:.0f}"
        for devices, optimum in table.items():
            yield label, int(devices), contract(network, int(devices)).problem, optimum


if __name__ == "__main__":
    main()
