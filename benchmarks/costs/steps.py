"""Predicted step times against measured ones, on two CPU processes with measured op times.

    python -m benchmarks.costs.steps [--model gpt2] [--schedule 1f1b]

Both processes plan at once, as the same script under torchrun does: each times its ops while the
other one does, with one thread, and the links between them are measured. Then, by turns, the ops of
the plan that is run are timed anew, and steps are run: other work on the machine, which comes and
goes, meets both alike. Medians count. Nothing is fitted to the steps.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import transformers
from torch import nn

import stagecut
from stagecut import passes
from stagecut.cli.compare import Figures, figures, optimizer_seconds
from stagecut.ir import plan as ir
from stagecut.ir.device import Cluster
from stagecut.ir.solution import Assignment
from stagecut.links import measured_cluster
from stagecut.partitioner import evaluate
from stagecut.placing import placed, posed_again, stages_of_clusters
from stagecut.runtime.agreement import share
from tests.support.ranks import results, run_ranks

MICROBATCHES, TURNS, STEPS = 4, 4, 3


def gpt2() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """GPT-2 small's 12 layers, at two thirds of its width and a sixth of its vocabulary."""
    config = transformers.GPT2Config(
        n_layer=12, n_embd=512, n_head=8, vocab_size=8192, n_positions=128, use_cache=False,
        bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM",
    )  # fmt: skip
    ids = torch.randint(0, 8192, (2 * MICROBATCHES, 64))
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


def vit() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """ViT-S/16 on images of 128."""
    config = transformers.ViTConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536,
        image_size=128, num_labels=100,
    )  # fmt: skip
    images = torch.randn(2 * MICROBATCHES, 3, 128, 128)
    labels = torch.randint(0, 100, (2 * MICROBATCHES,))
    return transformers.ViTForImageClassification(config), {
        "pixel_values": images,
        "labels": labels,
    }


def resnet() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """ResNet-50 on images of 96."""
    images = torch.randn(3 * MICROBATCHES, 3, 96, 96)
    labels = torch.randint(0, 2, (3 * MICROBATCHES,))
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig())
    return model, {"pixel_values": images, "labels": labels}


MODELS = {"gpt2": gpt2, "vit": vit, "resnet": resnet}
SCHEDULES = ("gpipe", "1f1b")


def measure(rank: int, name: str, schedule: str, cache: str) -> dict[str, Any]:
    """One process: plans, then by turns times its ops anew and runs some steps."""
    os.environ["XDG_CACHE_HOME"] = f"{cache}/{rank}"
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    rows = {key: value[: len(value) // MICROBATCHES] for key, value in batch.items()}
    cluster = share([measured_cluster()])[0]
    plan = stagecut.partition(
        model, 2, (), rows, cluster=cluster, cost="measured", schedule=schedule,
        n_microbatches=MICROBATCHES,
    )  # fmt: skip
    file = Path(cache) / "plan.json"
    if rank == 0:
        plan.save(file)
    dist.barrier()
    plan = stagecut.Plan.load(file)
    pipe = stagecut.pipeline(plan, model)
    optimizer = torch.optim.AdamW(pipe.parameters())
    predicted, taken, timelines, expected = [], [], [], []
    for turn in range(TURNS):
        now = predicted_now(plan.data, cluster)
        predicted.append(now.step_seconds)
        expected.append(now.timeline())
        for step in range(STEPS + (turn == 0)):
            both = run_step(pipe, optimizer, batch)
            if turn or step:  # the first step of all makes the optimizer's state
                taken.append(both)
                timelines.append(pipe.last_timeline())
    optimizing = [statistics.median(both[r][1] for both in taken) for r in (0, 1)]
    foreseen = np.median([optimizer_seconds(timeline) for timeline in expected], axis=0)
    return {
        "steps": [max(seconds for seconds, _ in both) for both in taken],
        "predictions": predicted,
        "measured": figures(timelines, [0.0, 0.0], optimizing, recorded=True),
        "predicted": figures(expected, [0.0, 0.0], list(foreseen), recorded=False),
        "link": cluster.inside,
    }


def predicted_now(plan: ir.Plan, cluster: Cluster) -> stagecut.Plan:
    """The plan, its ops and optimizer steps timed anew."""
    profile = passes.measure(plan.graph, cluster.devices[0], {}, True, optimizer=plan.optimizer)
    graph = passes.annotate(plan.graph, cluster.devices[0], {}, True, profile)
    timings = passes.step_timings(graph, profile, plan.optimizer)
    timed = replace(plan, graph=graph, step_timings=timings)
    problem, clustering = posed_again(timed)
    stage = stages_of_clusters(timed, clustering)
    evaluation = evaluate(problem, Assignment(stage))
    return stagecut.Plan(placed(timed, problem, clustering, stage, evaluation))


def run_step(
    pipe: Any, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]
) -> list[tuple[float, float]]:
    """(seconds of a step, of which the optimizer's) of each process."""
    dist.barrier()
    begun = time.perf_counter()
    pipe.train_step(**batch)
    backward = time.perf_counter()
    optimizer.step()
    ended = time.perf_counter()
    optimizer.zero_grad()
    both = [(0.0, 0.0), (0.0, 0.0)]
    dist.all_gather_object(both, (ended - begun, ended - backward))
    return both


def shown(found: dict[str, Any]) -> str:
    """The rows of one run, in ms."""
    lines = []
    for stage, (predicted, measured) in enumerate(
        zip(found["predicted"], found["measured"], strict=True)
    ):
        lines.append(f"  stage {stage}: " + "  ".join(_pairs(predicted, measured)))
    for key in ("predictions", "steps"):
        lines.append(f"  {key}: " + " ".join(f"{seconds * 1e3:.0f}" for seconds in found[key]))
    link = found["link"]
    lines.append(
        f"  link {link.latency_seconds * 1e6:.0f} µs, {link.bytes_per_second / 1e9:.2f} GB/s"
    )
    return "\n".join(lines)


def _pairs(predicted: Figures, measured: Figures) -> list[str]:
    names = ("forward", "backward", "send", "optimizer")
    pairs = [(name, getattr(predicted, name), getattr(measured, name)) for name in names]
    return [
        f"{name} {a * 1e3:.1f} / {'-' if b is None else f'{b * 1e3:.1f}'}" for name, a, b in pairs
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--schedule", choices=SCHEDULES)
    given = parser.parse_args()
    print(
        "| model | schedule | predicted, ms | measured, ms | error | load average before, after |"
    )
    print("|---|---|---|---|---|---|", flush=True)
    details = []
    for name in [given.model] if given.model else MODELS:
        for schedule in [given.schedule] if given.schedule else SCHEDULES:
            with tempfile.TemporaryDirectory() as cache:
                load = os.getloadavg()[0]
                ran = run_ranks(2, measure, name, schedule, cache, seconds=300)
                found = results(ran)[0]
            predicted, step = (statistics.median(found[key]) for key in ("predictions", "steps"))
            print(
                f"| {name} | {schedule} | {predicted * 1e3:.0f} | {step * 1e3:.0f} | "
                f"{predicted / step - 1:+.1%} | {load:.1f}, {os.getloadavg()[0]:.1f} |",
                flush=True,
            )
            details.append(f"{name} {schedule}, predicted / measured, ms:\n{shown(found)}")
    print("\n" + "\n".join(details))


if __name__ == "__main__":
    main()
