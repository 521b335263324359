"""What it costs to fit: cuts within 80 GB as they are and with blocks recomputed, on A100s.

python -m benchmarks.cuts.recomputing t5-11b,4 mixtral-8x7b,8 ...      as a Markdown table

The plan of `partition` with `recompute="auto"`, its default, beside the cuts in `gaps.json`: with
memory ignored, and within it with nothing recomputed. Its gap is over the bound that leaves memory
out, so that part of it is the price of fitting.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import stagecut
from benchmarks.cuts.gaps import MICROBATCHES_PER_STAGE, RESULTS
from benchmarks.cuts.sizes import load


def main() -> None:
    """A row for each cell named."""
    warnings.simplefilter("ignore")
    known = json.loads(RESULTS.read_text())
    print('| model | stages | memory ignored | nothing recomputed | `recompute="auto"` | its gap |')
    print("|---|---:|---:|---:|---:|---:|", flush=True)
    for cell in sys.argv[1:]:
        name, stages = cell.split(",")
        found = next(row for row in known[name] if row["stages"] == int(stages))
        print(row(name, int(stages), found), flush=True)


def row(name: str, stages: int, known: dict[str, Any]) -> str:
    """Three bottlenecks, and the last one's gap."""
    model, example = load(name)
    plan = stagecut.partition(
        model, stages, example_kwargs=example, cluster="A100",
        n_microbatches=MICROBATCHES_PER_STAGE * stages,
    )  # fmt: skip
    cuts = (known["memory_ignored"], known["within_memory"])
    others = [
        "does not fit" if isinstance(cut, str) else _text(cut["bottleneck_seconds"]) for cut in cuts
    ]
    if not plan.fits:
        return f"| {name} | {stages} | {' | '.join(others)} | does not fit | |"
    bottleneck = plan.data.bottleneck_seconds
    gap = bottleneck / plan.data.lower_bound_seconds - 1
    return f"| {name} | {stages} | {' | '.join(others)} | {_text(bottleneck)} | {gap:.1%} |"


def _text(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"


if __name__ == "__main__":
    main()
