"""How good cuts of models at published sizes are proved to be, on A100s.

python -m benchmarks.cuts.gaps FOLDER                  every model; FOLDER keeps traced problems
python -m benchmarks.cuts.gaps FOLDER gpt2-xl unet     some of them
python -m benchmarks.cuts.gaps --stages 2,4 FOLDER     some numbers of stages; the others are kept
python -m benchmarks.cuts.gaps --table                 gaps.json as Markdown

Each model is traced once. Every number of stages is then cut twice: within the memory of 80 GB
devices, nothing recomputed, where that is possible, and with memory ignored. In the table a star
stands beside cuts that the clock ended.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stagecut.ir.errors import InfeasibleError
from stagecut.ir.problem import Problem
from stagecut.partitioner import lacks_memory, solve

RESULTS = Path(__file__).parent / "gaps.json"
STAGES = (2, 4, 8, 16, 32)
MICROBATCHES_PER_STAGE = 4
SECONDS = 10.0
"""The clock of one cut, that of `partition`; the budgets end most cuts earlier."""
Row = dict[str, Any]


def main() -> None:
    """Adds the rows of the models named to gaps.json."""
    match sys.argv[1:]:
        case ["--table"]:
            print(table(json.loads(RESULTS.read_text())))
        case ["--trace", folder, name]:
            warnings.simplefilter("ignore")
            problems(Path(folder), name)
        case ["--stages", stages, folder, *names]:
            add(Path(folder), names, tuple(map(int, stages.split(","))))
        case [folder, *names]:
            add(Path(folder), names, STAGES)
        case _:
            print(__doc__)


def add(folder: Path, names: list[str], stages: tuple[int, ...]) -> None:
    """A row a number of stages of each model."""
    warnings.simplefilter("ignore")
    from benchmarks.cuts.sizes import MODELS

    for name in names or list(MODELS):
        found = problems(folder, name)
        for k in stages:
            _add(name, row(name, found["trace_seconds"], k, found["problems"][k]))


def row(name: str, trace_seconds: float, n_stages: int, problem: Problem) -> Row:
    """Both cuts of one problem."""
    free = replace(problem, memory_limit_bytes=np.full(n_stages, np.inf))
    within: Row | str = "proved by counting"
    if not lacks_memory(problem):
        within = cut(problem)
    made: Row = {
        "stages": n_stages, "groups": problem.n, "trace_seconds": round(trace_seconds, 1),
        "within_memory": within, "memory_ignored": cut(free),
    }  # fmt: skip
    print(name, n_stages, _cell(within), "|", _cell(made["memory_ignored"]), flush=True)
    return made


def cut(problem: Problem) -> Row | str:
    """Bottleneck, gap and seconds of `auto`; why there is none, where nothing fits."""
    started, worked = time.perf_counter(), time.process_time()
    try:
        found = solve(problem, "auto", SECONDS)
    except InfeasibleError as error:
        return "proved" if "Proved" in str(error) else "none found"
    return {
        "bottleneck_seconds": found.evaluation.bottleneck_seconds,
        "lower_bound_seconds": found.lower_bound_seconds,
        "gap": found.gap,
        "optimal": found.optimal,
        "method": found.method,
        "largest_group_share": largest_share(problem, found.evaluation.bottleneck_seconds),
        "seconds": round(time.perf_counter() - started, 2),
        "cpu_seconds": round(time.process_time() - worked, 2),
        "stopped_by_clock": found.stopped_by_clock,
    }


def largest_share(problem: Problem, bottleneck_seconds: float) -> float:
    """The largest group of ops as a share of the bottleneck: 1 where it alone decides."""
    seconds = problem.forward_seconds[0] + problem.backward_seconds[0]
    return float(seconds.max()) / bottleneck_seconds


def problems(folder: Path, name: str) -> dict[str, Any]:
    """The model's problem for each number of stages, and how long its trace took; kept on disk."""
    path = folder / f"{name}.pickle"
    if path.exists():
        known: dict[str, Any] = pickle.loads(path.read_bytes())
        return known
    from benchmarks.cuts.sizes import load

    model, example = load(name)
    started = time.process_time()
    posed = pose(model, example)
    made = {"trace_seconds": time.process_time() - started, "problems": posed}
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(made))
    return made


def pose(model: Any, example: Mapping[str, Any]) -> dict[int, Problem]:
    """The problems that `partition` poses for A100s."""
    from stagecut.frontend import trace
    from stagecut.ir.devices import cluster
    from stagecut.partitioner.schedules import in_flight
    from stagecut.passes import annotate, build_problem, drop_dead, out_of_place
    from stagecut.timetables import timetable

    graph = drop_dead(out_of_place(trace(model, (), example, training=True).graph))
    costed = annotate(graph, cluster("A100", 1).devices[0], {}, True)
    found = {}
    for k in STAGES:
        times = timetable("1f1b", k, None, MICROBATCHES_PER_STAGE)
        found[k], _ = build_problem(
            costed,
            cluster=cluster("A100", k),
            n_stages=k,
            n_microbatches=times.n_microbatches,
            in_flight=in_flight(times),
            memory_limit=None,
            optimizer="adamw",
            training=True,
            pins={},
        )
    return found


def _add(name: str, made: Row) -> None:
    from benchmarks.cuts.sizes import MODELS

    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    others = [row for row in known.get(name, []) if row["stages"] != made["stages"]]
    known[name] = sorted([*others, made], key=lambda row: row["stages"])
    ordered = {model: known[model] for model in MODELS if model in known}
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")


def table(results: Mapping[str, list[Row]]) -> str:
    """One row a model, one column a number of stages: gap, then seconds, of both cuts."""
    head = "| model | groups of ops | memory |" + "".join(f" {k} stages |" for k in STAGES)
    lines = [head, "|---|---:|---|" + "---|" * len(STAGES)]
    for name, rows in results.items():
        for column, label in (("within_memory", "within 80 GB"), ("memory_ignored", "ignored")):
            by_stages = {row["stages"]: _cell(row[column]) for row in rows}
            cells = "".join(f" {by_stages.get(k, '')} |" for k in STAGES)
            lines.append(f"| {name} | {rows[0]['groups']:,} | {label} |{cells}")
    return "\n".join([*lines, "", *_counts(results)])


def _cell(found: Row | str) -> str:
    if isinstance(found, str):
        return "none found" if found == "none found" else "does not fit"
    proof = "optimal" if found["optimal"] else f"{found['gap']:.2%}"
    return f"{proof}, {found['seconds']:.1f} s" + "*" * found["stopped_by_clock"]


def _counts(results: Mapping[str, list[Row]]) -> list[str]:
    """How many cells are within one and five percent."""
    lines = []
    for few, label in ((True, "up to 8 stages"), (False, "16 and 32 stages")):
        for column in ("within_memory", "memory_ignored"):
            gaps = [
                round(row[column]["gap"], 6)  # bounds are lowered by a billionth
                for rows in results.values()
                for row in rows
                if (row["stages"] <= 8) == few and isinstance(row[column], dict)
            ]
            good, fair = sum(g <= 0.01 for g in gaps), sum(g <= 0.05 for g in gaps)
            lines.append(f"{label}, {column}: {len(gaps)} cells, {good} ≤ 1%, {fair} ≤ 5%")
    return lines


if __name__ == "__main__":
    main()
