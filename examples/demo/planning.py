"""Parts 1 and 2: GPT-2 124M planned in seconds, and written out as four files."""

from __future__ import annotations

import time
from pathlib import Path

import torch
import transformers
from rich.console import Console
from rich.syntax import Syntax

import stagecut
from stagecut.report import plan_table
from stagecut.report.units import bytes_text

TOKENS = 1024
HEAD_LINES, BODY_LINES = 8, 32


def plan_gpt2(console: Console) -> stagecut.Plan:
    """Cuts GPT-2 for four A100s; no weight exists anywhere."""
    with console.status("Building GPT-2 on the meta device ..."), torch.device("meta"):
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
        tokens = torch.zeros(4, TOKENS, dtype=torch.long)
    n_weights = sum(p.numel() for p in model.parameters())
    started = time.perf_counter()
    with console.status("Tracing, costing and cutting ..."):
        plan = stagecut.partition(model, 4, (tokens,), cluster="A100")
    seconds = time.perf_counter() - started
    console.print(plan_table(plan.data, plan.timeline()))
    console.print(f"\n{n_weights / 1e6:.0f}M weights, planned in [bold]{seconds:.1f} s[/].\n")
    return plan


def export_gpt2(plan: stagecut.Plan, folder: Path, console: Console) -> None:
    """Writes the stages with (random) weights, and shows a part of the second one."""
    with console.status("Writing the stages ..."):
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
        plan.export(folder, model)
    for path in sorted(folder.iterdir()):
        console.print(f"  {path.name:<22} {bytes_text(path.stat().st_size):>10}")
    source = (folder / "stage_1.py").read_text().splitlines()
    forward = next(n for n, line in enumerate(source) if "def forward" in line)
    block = next(n for n, line in enumerate(source) if "# transformer.h." in line and n > forward)
    body = source[block : block + BODY_LINES]
    shown = [*source[:HEAD_LINES], "...", source[forward], "        ...", *body, "        ..."]
    console.print(f"\nFrom the {len(source)} lines of stage_1.py:\n")
    console.print(Syntax("\n".join(shown), "python", background_color="default"))
    console.print()
