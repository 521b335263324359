"""Folded placement beside one stage a device and interleaved stages, on fast links and slower ones.

python -m benchmarks.cuts.folding FOLDER [MODEL ...]      FOLDER as in gaps.py

    1f1b           the method `dp`, one stage a device
    interleaved    the method `dp`, two stages a device
    folded         METIS's k-way parts, each as one stage or several (`partitioner/folding.py`)

All run the same micro-batches, four a device, on A100s that are joined by one kind of link: NVLink,
200 Gb/s InfiniBand, or Ethernet. Memory is ignored. Bytes are those between devices, of one
micro-batch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.cuts.gaps import MICROBATCHES_PER_STAGE, problems
from stagecut.ir.device import Link
from stagecut.ir.devices import cluster
from stagecut.ir.problem import IntArray, Problem
from stagecut.ir.schedule import Schedule, StageEdge
from stagecut.ir.solution import Assignment
from stagecut.partitioner import best_fold, evaluate, solve
from stagecut.partitioner.folding import on_devices
from stagecut.partitioner.planning.costing import Costed, step_costs
from stagecut.partitioner.schedules import expand, make_schedule, simulate

MODELS = ("unet", "clip-l", "swin-l", "whisper-large", "t5-11b", "mixtral-8x7b", "gpt2-xl")
DEVICES = (2, 4, 8)
SECONDS = 60.0


def main() -> None:
    """One row a model, number of devices and kind of link."""
    folder, names = Path(sys.argv[1]), sys.argv[2:] or MODELS
    print("| model | devices | links | 1f1b | | interleaved | | folded | | stages on | found in |")
    print("|---|---:|---|---:|---:|---:|---:|---:|---:|---|---:|")
    for name in names:
        for d in DEVICES:
            problem = problems(folder, name)["problems"][d]
            for words, link in links().items():
                print(f"| {name} | {d} | {words} | {row(_linked(problem, link))} |", flush=True)


def links() -> dict[str, Link]:
    """What joins the devices, from the table of clusters."""
    fast, slow = cluster("dgx-a100", 2), cluster("a100-pcie-pair", 2)
    return {"NVLink": fast.inside, "InfiniBand": fast.between, "Ethernet": slow.between}


def row(problem: Problem) -> str:
    """Step and bytes of the three, and where the folded stages lie."""
    d = problem.n_stages
    cells = [
        *_cells(problem, "1f1b", tuple(range(d))),
        *_cells(problem, "interleaved", tuple(s % d for s in range(2 * d))),
    ]
    started = time.process_time()
    found = best_fold(problem, MICROBATCHES_PER_STAGE * d)
    seconds = time.process_time() - started
    if found is None:
        return " | ".join([*cells, "none", "", "", f"{seconds:.1f} s"])
    owner = found.fold.device_of_stage
    n_bytes = _bytes_between(problem, found.fold.stage, owner)
    where = " ".join(map(str, owner))
    return " | ".join([*cells, _ms(found.step_seconds), n_bytes, where, f"{seconds:.1f} s"])


def _cells(problem: Problem, name: str, owner: Sequence[int]) -> Iterator[str]:
    posed = on_devices(problem, owner)
    stage = solve(posed, "dp", SECONDS).assignment.stage
    d = problem.n_stages
    schedule = make_schedule(name, len(owner), d, MICROBATCHES_PER_STAGE * d)
    yield _ms(_step_seconds(posed, stage, schedule))
    yield _bytes_between(problem, stage, owner)


def _linked(problem: Problem, link: Link) -> Problem:
    """Without memory limits, all devices joined by one kind of link."""
    k = problem.n_stages
    apart = 1.0 - np.eye(k)
    return replace(
        problem,
        memory_limit_bytes=np.full(k, np.inf),
        link_latency_seconds=apart * link.latency_seconds,
        link_seconds_per_byte=apart / link.bytes_per_second,
    )


def _step_seconds(problem: Problem, stage: IntArray, schedule: Schedule) -> float:
    costs = step_costs(Costed(problem, ("",), np.zeros(problem.n), 0.0), problem, stage, None)
    edges = [StageEdge(e.source, e.destination, e.backward_seconds > 0) for e in costs.edges]
    return simulate(expand(schedule, edges, ahead=1), costs).step_seconds


def _bytes_between(problem: Problem, stage: IntArray, owner: Sequence[int]) -> str:
    scored = evaluate(problem, Assignment(np.asarray(owner)[stage]))
    return f"{scored.bytes_cut / 2**20:,.0f} MiB"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"


if __name__ == "__main__":
    main()
