"""What costing GPT-3 175B takes after tracing, pass by pass, without and with recomputation.

    python -m benchmarks.costs.gpt3

The model of `benchmarks.planning.gpt3`, for 16 GPUs; no cut is searched for, the ops are dealt out
evenly. Processor seconds stand beside the clock's: they differ where the machine is shared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
import transformers

from benchmarks.planning.gpt3 import GPUS, HEADS, LAYERS, TOKENS, WIDTH
from stagecut.frontend import trace
from stagecut.ir.devices import cluster
from stagecut.ir.graph import Graph
from stagecut.ir.problem import Problem
from stagecut.ir.solution import Assignment
from stagecut.partitioner import evaluate
from stagecut.passes import (
    Clustering,
    annotate,
    build_problem,
    describe_stages,
    drop_dead,
    out_of_place,
    recomputable,
    recomputed,
    relief_of,
)

T = TypeVar("T")
MICROBATCHES = 4 * GPUS


class Clock:
    """Prints what each part takes and adds it up."""

    def __init__(self) -> None:
        self.busy = self.wall = 0.0

    def __call__(self, name: str, work: Callable[[], T]) -> T:
        busy, wall = time.process_time(), time.perf_counter()
        result = work()
        busy, wall = time.process_time() - busy, time.perf_counter() - wall
        self.busy, self.wall = self.busy + busy, self.wall + wall
        print(f"{name:32s} {busy:6.2f} processor s {wall:6.2f} s", flush=True)
        return result

    def total(self, name: str) -> None:
        print(f"{name:32s} {self.busy:6.2f} processor s {self.wall:6.2f} s\n", flush=True)


def traced() -> Graph:
    with torch.device("meta"):
        config = transformers.GPT2Config(
            n_layer=LAYERS, n_embd=WIDTH, n_head=HEADS, n_positions=TOKENS, use_cache=False
        )
        model = transformers.GPT2LMHeadModel(config).bfloat16()
        tokens = torch.zeros(2, TOKENS, dtype=torch.long)
    return trace(model, (tokens,), {}, training=True).graph


def main() -> None:
    devices = cluster("H200", GPUS)
    card = devices.devices[0]

    def pose(costed: Graph) -> tuple[Problem, Clustering]:
        return build_problem(
            costed, cluster=devices, n_stages=GPUS, n_microbatches=MICROBATCHES,
            in_flight=range(GPUS, 0, -1), memory_limit=None, optimizer="adamw", training=True,
            pins={},
        )  # fmt: skip

    def describe(costed: Graph, problem: Problem, clustering: Clustering) -> Sequence[object]:
        stage = np.arange(problem.n) * GPUS // problem.n
        return describe_stages(
            costed, problem, clustering, stage, evaluate(problem, Assignment(stage)), devices,
            range(GPUS), "adamw", True, MICROBATCHES,
        )  # fmt: skip

    graph = Clock()("trace", traced)
    print()
    clock = Clock()
    bare = clock("out_of_place, drop_dead", lambda: drop_dead(out_of_place(graph)))
    costed = clock("annotate", lambda: annotate(bare, card, {}, True))
    problem, clustering = clock("build_problem", lambda: pose(costed))
    clock("describe_stages", lambda: describe(costed, problem, clustering))
    clock.total("costs of GPT-3")
    groups = clock("recomputable", lambda: recomputable(costed))
    clock("relief_of", lambda: relief_of([costed], clustering, groups))
    again = clock("recomputed", lambda: recomputed(costed, groups))
    problem, clustering = clock("build_problem", lambda: pose(again))
    clock("describe_stages", lambda: describe(again, problem, clustering))
    clock.total("and with recomputation")


if __name__ == "__main__":
    main()
