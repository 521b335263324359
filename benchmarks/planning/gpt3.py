"""How long and how much memory `partition()` takes for GPT-3 175B on 16 GPUs.

    python -m benchmarks.planning.gpt3

96 layers of width 12,288, 2,048 tokens a row, bfloat16, all weights on the meta device. Processor
seconds are printed beside the wall clock's: they differ where the machine is shared.
"""

from __future__ import annotations

import resource
import time

import torch
import transformers

from stagecut import partition

LAYERS, WIDTH, HEADS, TOKENS, GPUS = 96, 12_288, 96, 2_048, 16
KIB = 1024


def main() -> None:
    with torch.device("meta"):
        config = transformers.GPT2Config(
            n_layer=LAYERS, n_embd=WIDTH, n_head=HEADS, n_positions=TOKENS, use_cache=False
        )
        model = transformers.GPT2LMHeadModel(config).bfloat16()
        tokens = torch.zeros(2, TOKENS, dtype=torch.long)
    before = peak_bytes()
    started, worked = time.perf_counter(), time.process_time()
    plan = partition(model, GPUS, (tokens,), cluster="H200")
    seconds, worked = time.perf_counter() - started, time.process_time() - worked
    print(plan)
    weights = sum(p.numel() for p in model.parameters())
    print(f"weights                 {weights / 1e9:.1f} billion")
    print(f"ops in the graph        {len(plan.data.graph.ops):,}")
    print(f"partition() to Plan     {seconds:.1f} s, {worked:.1f} processor seconds")
    print(f"peak memory             {peak_bytes() / 1024**3:.2f} GiB")
    print(f"of which before it      {before / 1024**3:.2f} GiB (torch, transformers, the model)")


def peak_bytes() -> int:
    """The largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


if __name__ == "__main__":
    main()
