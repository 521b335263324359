"""METIS beside dynamic programming over orders: bottleneck, bytes cut and step time.

python -m benchmarks.cuts.seeds FOLDER [MODEL ...]      FOLDER as in gaps.py

    kway       METIS's k-way parts, as stages if they depend on each other in no circle
    bisected   recursive bisection made acyclic at each level, as it comes
    metis      that, cut again along its own order and polished: the method `metis`
    dp         the method `dp`
    folded     METIS's k-way parts, each as several stages of one device (`partitioner/folding.py`)

Memory is ignored. A step is 1F1B with four micro-batches a stage, simulated; a folded one runs the
same micro-batches by the schedule `folded`, and its bottleneck is a device's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import networkx
import numpy as np
import pymetis

from benchmarks.cuts.gaps import MICROBATCHES_PER_STAGE, problems
from stagecut.ir.problem import IntArray, Problem
from stagecut.ir.schedule import StageEdge
from stagecut.ir.solution import Assignment
from stagecut.partitioner import Folded, best_fold, device_loads, evaluate, solve
from stagecut.partitioner.metis import metis_seeds
from stagecut.partitioner.orders import orders
from stagecut.partitioner.planning.costing import Costed, step_costs
from stagecut.partitioner.schedules import expand, make_schedule, simulate

MODELS = ("unet", "clip-l", "swin-l", "whisper-large", "t5-11b", "mixtral-8x7b", "resnet-152")
STAGES = (4, 8)
SECONDS = 60.0


def main() -> None:
    """One row a model, number of stages and method."""
    folder, names = Path(sys.argv[1]), sys.argv[2:] or MODELS
    print("| model | stages | method | bottleneck | over the best | bytes cut | step |")
    print("|---|---:|---|---:|---:|---:|---:|")
    for name in names:
        for k in STAGES:
            problem = problems(folder, name)["problems"][k]
            free = replace(problem, memory_limit_bytes=np.full(k, np.inf))
            for row in rows(free):
                print(f"| {name} | {k} | {row} |", flush=True)


def rows(problem: Problem) -> Iterator[str]:
    """The methods of one problem."""
    found: dict[str, IntArray | None] = {
        "kway": kway(problem),
        "bisected": bisected(problem),
        "metis": solve(problem, "metis", SECONDS).assignment.stage,
        "dp": solve(problem, "dp", SECONDS).assignment.stage,
    }
    auto = solve(problem, "auto", SECONDS)
    found[f"auto, by {auto.method}"] = auto.assignment.stage
    best = auto.evaluation.bottleneck_seconds
    for method, stage in found.items():
        if stage is None:
            yield f"{method} | stages in a circle | | | "
            continue
        scored = evaluate(problem, Assignment(stage))
        reached = scored.bottleneck_seconds
        yield (
            f"{method} | {reached * 1e3:.2f} ms | {reached / best:.3f} | "
            f"{scored.bytes_cut / 2**20:,.0f} MiB | {step_seconds(problem, stage) * 1e3:.1f} ms"
        )
    yield folded_row(problem, best)


def folded_row(problem: Problem, best: float) -> str:
    """The placement of METIS's parts whose step is shortest."""
    found = best_fold(problem, MICROBATCHES_PER_STAGE * problem.n_stages)
    if found is None:
        return "folded | none | | | "
    reached = device_loads(found.evaluation, found.fold.device_of_stage).max()
    return (
        f"folded, {found.problem.n_stages} stages | {reached * 1e3:.2f} ms | {reached / best:.3f} "
        f"| {bytes_between(problem, found) / 2**20:,.0f} MiB | {found.step_seconds * 1e3:.1f} ms"
    )


def bytes_between(problem: Problem, found: Folded) -> float:
    """What a placement sends from device to device."""
    owner = np.asarray(found.fold.device_of_stage)
    return evaluate(problem, Assignment(owner[found.fold.stage])).bytes_cut


def bisected(problem: Problem) -> IntArray:
    """The best of the seeds, not cut again."""
    _, program = next(orders(problem))
    seeds = [seed for _, seed in metis_seeds(problem, program)]
    return min(seeds, key=lambda seed: evaluate(problem, seed).bottleneck_seconds).stage


def kway(problem: Problem) -> IntArray | None:
    """METIS's parts by time and bytes, in an order that their edges allow; None without one."""
    weights: dict[tuple[int, int], int] = {}
    size = problem.value_forward_bytes + problem.value_backward_bytes
    for value, n_bytes in enumerate(size.tolist()):
        head, *users = problem.values[value].tolist()
        for user in users:
            share = 1 + int(1e6 * n_bytes / size.sum() / len(users))
            for pair in ((head, user), (user, head)):
                weights[pair] = weights.get(pair, 0) + share
    adjacent: list[list[int]] = [[] for _ in range(problem.n)]
    for a, b in weights:
        adjacent[a].append(b)
    seconds = problem.forward_seconds[0] + problem.backward_seconds[0]
    _, parts = pymetis.part_graph(
        problem.n_stages,
        adjacent,
        vweights=[1 + int(1e6 * s) for s in (seconds / seconds.sum()).tolist()],
        eweights=[weights[a, b] for a in range(problem.n) for b in adjacent[a]],
        recursive=False,
    )
    part = np.asarray(parts)
    quotient = networkx.DiGraph()
    quotient.add_nodes_from(range(problem.n_stages))
    quotient.add_edges_from({(int(part[a]), int(part[b])) for a, b in problem.edges} - _loops(part))
    if not networkx.is_directed_acyclic_graph(quotient):
        return None
    place = {p: stage for stage, p in enumerate(networkx.topological_sort(quotient))}
    return np.asarray([place[p] for p in part.tolist()])


def _loops(part: IntArray) -> set[tuple[int, int]]:
    return {(p, p) for p in np.unique(part).tolist()}


def step_seconds(problem: Problem, stage: IntArray) -> float:
    """Of 1F1B with four micro-batches a stage."""
    k = problem.n_stages
    costed = Costed(problem, ("",), np.zeros(problem.n), 0.0)
    costs = step_costs(costed, problem, stage, None)
    edges = [StageEdge(e.source, e.destination, e.backward_seconds > 0) for e in costs.edges]
    schedule = make_schedule("1f1b", k, k, MICROBATCHES_PER_STAGE * k)
    return simulate(expand(schedule, edges, ahead=1), costs).step_seconds


if __name__ == "__main__":
    main()
