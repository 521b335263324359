"""Seconds and memory of a cut against the number of ops, 10^3 to 10^5, as a table and a plot.

    python -m benchmarks.planning.scaling            measures, writes scaling.json and scaling.svg
    python -m benchmarks.planning.scaling --draw     draws and prints what was measured before

Transformers of 17 ops a layer (`benchmarks/planning/layered.py`), cut into 16 and 64 stages: `dp`
is the dynamic programme over orders with its polish and its lower bound, `auto` goes on from there
within budgets while the gap is above one percent. Each figure is the median of three runs, each in
a process of its own; seconds are the processor's.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.planning.drawing import Line, draw

HERE = Path(__file__).parent
RESULTS, PLOT = HERE / "scaling.json", HERE / "scaling.svg"
OPS, STAGES, METHODS, RUNS = (1_000, 3_000, 10_000, 30_000, 100_000), (16, 64), ("dp", "auto"), 3
CLOCK = 900.0
"""Seconds of the safety stop, on a machine that others use too: the budgets end a cut."""
COLOURS = {("dp", 16): "#7fb3d5", ("dp", 64): "#1f618d", ("auto", 16): "#f0b27a",
           ("auto", 64): "#ba4a00"}  # fmt: skip
Row = dict[str, Any]


def main() -> None:
    """Measures unless told to draw alone."""
    if "--draw" not in sys.argv:
        RESULTS.write_text(json.dumps(list(map(_median, _cells())), indent=1) + "\n")
    rows = json.loads(RESULTS.read_text())
    PLOT.write_text(draw("ops", "seconds of the cut", _lines(rows)))
    print(table(rows))


def table(rows: list[Row]) -> str:
    """One row a number of ops, a column a method and number of stages."""
    keys = [(method, stages) for stages in STAGES for method in METHODS]
    heads = "".join(f" {method}, {stages} stages |" for method, stages in keys)
    lines = [f"| ops |{heads}", f"|---:|{'---:|' * len(keys)}"]
    for ops in OPS:
        mine = [row for row in rows if row["asked"] == ops]
        found = {(row["method"], row["stages"]): row for row in mine}
        cells = "".join(f" {_cell(found[key])} |" for key in keys)
        lines.append(f"| {mine[0]['ops']:,} |{cells}")
    return "\n".join(lines)


def _cell(row: Row) -> str:
    return f"{row['seconds']:.2f} s, {row['gap']:.2%}, {row['peak_mib']:,} MiB"


def _lines(rows: list[Row]) -> list[Line]:
    made = []
    for (method, stages), colour in COLOURS.items():
        mine = [row for row in rows if (row["method"], row["stages"]) == (method, stages)]
        points = tuple((float(row["ops"]), float(row["seconds"])) for row in mine)
        made.append(Line(f"{method}, {stages} stages", colour, points))
    return made


def _cells() -> list[Row]:
    context = multiprocessing.get_context("spawn")
    rows = []
    for method in METHODS:
        for stages in STAGES:
            for ops in OPS:
                for _ in range(RUNS):
                    with context.Pool(1) as pool:
                        rows.append(pool.apply(measured, (ops, stages, method)))
                    print(rows[-1], flush=True, file=sys.stderr)
    return [{"runs": rows[first : first + RUNS]} for first in range(0, len(rows), RUNS)]


def measured(ops: int, stages: int, method: str) -> Row:
    """One cut, in this process alone."""
    from benchmarks.planning.layered import layered
    from stagecut.partitioner import solve

    problem = layered(ops // 17, stages)
    started, worked = time.perf_counter(), time.process_time()
    found = solve(problem, method, CLOCK)
    return {
        "asked": ops, "ops": problem.n, "stages": stages, "method": method,
        "seconds": time.process_time() - worked, "wall_seconds": time.perf_counter() - started,
        "gap": found.gap, "stopped_by_clock": found.stopped_by_clock,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }  # fmt: skip


def _median(cell: Row) -> Row:
    """Of the runs of one cell: the figures of the run in the middle by seconds."""
    runs = sorted(cell["runs"], key=lambda row: float(row["seconds"]))
    middle: Row = dict(runs[len(runs) // 2])
    middle["wall_seconds"] = statistics.median(row["wall_seconds"] for row in runs)
    return middle


if __name__ == "__main__":
    main()
