"""Steps on two real processes: measured against simulated, and against torch's own pipelining.

Both run the same stage modules under the same schedule, one thread a process, by turns. Figures are
medians of the rounds: by the wall clock, and in CPU seconds of the first process, which other load
on the machine disturbs less. The simulated step takes the costs of the computes from the recording
of one step each round (its median a stage and phase) and no time for transfers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

import stagecut
from stagecut.ir.schedule import Phase
from stagecut.ir.timeline import EdgeCost, StepCosts, Timeline
from stagecut.partitioner.schedules import simulate
from tests.support.ranks import results, run_ranks

CASES = (("gpipe", 2), ("1f1b", 2), ("interleaved", 4), ("zero_bubble", 2))
"""(schedule, stages on two devices); torch has no zero bubble for one stage a device."""
THEIRS: dict[str, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
}
WIDTH, DEPTH, MICROBATCHES, ROWS = 512, 8, 8, 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def mean_square(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def measure(rank: int, schedule: str, n_stages: int, rounds: int) -> dict[str, float]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(DEPTH)))
    batch = torch.randn(MICROBATCHES * ROWS, WIDTH)
    plan = stagecut.partition(
        model, 2, (batch[:ROWS],), schedule=schedule, n_microbatches=MICROBATCHES
    )
    pipe = stagecut.pipeline(plan, model, loss_fn=mean_square)
    modules = {stage: runner.module for stage, runner in pipe.runtime.runners.items()}
    runs: dict[str, Callable[[], Any]] = {"ours": lambda: pipe.train_step(batch, target=batch)}
    if schedule in THEIRS:
        runs["theirs"] = torch_step(schedule, modules, n_stages, rank, batch)
    seconds: dict[str, list[float]] = defaultdict(list)
    ratios, bubbles = [], []
    for turn in range(rounds + 2):
        for name, run in list(runs.items())[:: -1 if turn % 2 else 1]:
            model.zero_grad()
            dist.barrier()
            start, busy = time.perf_counter(), time.process_time()
            run()
            busy = time.process_time() - busy
            dist.barrier()
            if turn > 1:
                seconds[name].append(time.perf_counter() - start)
                seconds[f"{name}, CPU"].append(busy)
        if turn > 1:
            line = pipe.last_timeline()
            ratios.append(line.step_seconds / simulated(pipe, line).step_seconds)
            bubbles.append((line.bubble_share, simulated(pipe, line).bubble_share))
    return {
        **{name: statistics.median(found) for name, found in seconds.items()},
        "measured / simulated": statistics.median(ratios),
        "bubble": statistics.median(measured for measured, _ in bubbles),
        "bubble simulated": statistics.median(predicted for _, predicted in bubbles),
    }


def torch_step(
    schedule: str, modules: dict[int, nn.Module], n_stages: int, rank: int, batch: torch.Tensor
) -> Callable[[], Any]:
    """The same step by torch.distributed.pipelining."""

    class Single(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.module(x)[0]  # type: ignore[no-any-return]

    stages = [
        PipelineStage(Single(modules[s]), s, n_stages, torch.device("cpu")) for s in sorted(modules)
    ]
    several = schedule == "interleaved"
    made = THEIRS[schedule](stages if several else stages[0], MICROBATCHES, loss_fn=mean_square)
    last = n_stages - 1 in modules

    def step() -> None:
        losses: list[torch.Tensor] = []
        given = (batch,) if 0 in modules else ()
        made.step(*given, **({"target": batch, "losses": losses} if last else {}))

    return step


def simulated(pipe: Any, line: Timeline) -> Timeline:
    """The step's own actions on the recorded costs of its computes."""
    k = len(line.device_of_stage)
    spans = line.spans
    seconds = spans.end_seconds - spans.start_seconds

    def median(phase: Phase) -> tuple[float, ...]:
        found = [seconds[(spans.stage == s) & (spans.phase == phase.value)] for s in range(k)]
        return tuple(float(statistics.median(x)) if len(x) else 0.0 for x in found)

    actions = pipe._last
    costs = StepCosts(
        forward_seconds=median(Phase.FORWARD),
        backward_seconds=median(Phase.BACKWARD),
        backward_input_seconds=median(Phase.BACKWARD_INPUT),
        backward_weight_seconds=median(Phase.BACKWARD_WEIGHT),
        saved_bytes=(0.0,) * k,
        static_bytes=(0.0,) * k,
        optimizer_seconds=(0.0,) * k,
        edges=tuple(EdgeCost(e.source, e.destination, 0.0, 0.0) for e in actions.edges),
    )
    return simulate(actions, costs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=[name for name, _ in CASES])
    given = parser.parse_args()
    rounds = given.rounds
    headings = (
        "schedule", "stages", "step, ms", "torch, ms", "ratio", "ratio of CPU",
        "measured / simulated", "bubble", "simulated",
    )  # fmt: skip
    print(f"| {' | '.join(headings)} |")
    print("|---|---|---|---|---|---|---|---|---|")
    for schedule, n_stages in CASES:
        if given.only not in (None, schedule):
            continue
        found = results(run_ranks(2, measure, schedule, n_stages, rounds, seconds=200))[0]
        theirs = found.get("theirs")
        ratio = "- | - | -"
        if theirs:
            cpu = found["ours, CPU"] / found["theirs, CPU"]
            ratio = f"{theirs * 1e3:.1f} | {found['ours'] / theirs:.3f} | {cpu:.3f}"
        print(
            f"| {schedule} | {n_stages} | {found['ours'] * 1e3:.1f} | {ratio} | "
            f"{found['measured / simulated']:.3f} | {found['bubble']:.1%} | "
            f"{found['bubble simulated']:.1%} |"
        )


if __name__ == "__main__":
    main()
