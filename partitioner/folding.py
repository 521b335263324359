r"""Folded placement: a METIS part cut into segments that follow one another, all on one device.

Legend:  d devices, k stages (segments), n clusters, m micro-batches.

METIS's k-way parts of a graph with skips need each other in circles; they are no stages, but each
may be what one device computes. A walk through the graph in topological order, which leaves a part
only where nothing more of it is ready, falls into runs of one part each:

    encoder A1 A2      decoder A3 A4     skips A1-A4, A2-A3      parts A = {A1 .. A4}, B = {B1, B2}
             \\ B1 B2 /                                          runs A1 A2 | B1 B2 | A3 A4

Every value goes from a run to itself or a later one, so runs are stages: three of them here, on
devices 0, 1, 0. Small runs are given to a neighbour's device, which joins two or three runs into
one; then the borders between runs move by what lowers the largest device load. Fewer stages send
less, more of them fill the pipeline sooner: each such placement's step is simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stagecut.ir.problem import FloatArray, Incidence, IntArray, Problem
from stagecut.ir.schedule import Schedule, StageEdge
from stagecut.ir.solution import Assignment, Evaluation
from stagecut.partitioner.evaluate import evaluate
from stagecut.partitioner.metis import kway_parts
from stagecut.partitioner.planning.costing import Costed, step_costs
from stagecut.partitioner.runs import Fold, Runs, mean_seconds, walk
from stagecut.partitioner.schedules import expand, folded, in_flight, simulate
from stagecut.partitioner.schedules.folded import Costs

_MOST_SEEDS, _SEEDS = 6, 300_000
"""METIS seeds at most; and their budget times clusters times the square of the devices, which is
what a seed's work grows with. One of each kind at least."""
_MOST_STAGES = 3
"""Stages a device, at most."""
_SHIFTS = (64, 16, 4, 1)
"""Clusters by which a border is tried elsewhere."""


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """A fold as a problem of its own, with the score of each stage."""

    fold: Fold
    problem: Problem
    """For k stages; a stage may have of its device's memory what the device's others leave."""
    evaluation: Evaluation
    step_seconds: float
    """Simulated, of m micro-batches; without the optimizer's step and sums over replicas."""


def best_fold(problem: Problem, n_microbatches: int) -> Folded | None:
    """The placement of METIS's parts whose simulated step is shortest.

    Stage s of `problem` stands for device s. None where no placement keeps the devices' memory.
    """
    best = None
    for fold in folds(problem):
        posed, evaluation = _posed(problem, fold)
        work = _computing(evaluation, fold.device_of_stage)
        if best is not None and n_microbatches * work >= best.step_seconds:
            continue  # transfers may run beside computing, which alone takes longer than the best
        schedule = folded(fold.device_of_stage, n_microbatches, stage_costs(evaluation))
        posed = replace(posed, in_flight=np.array(in_flight(schedule)))
        posed = _sharing(problem, fold, posed)
        evaluation = evaluate(posed, Assignment(fold.stage))
        if evaluation.faults:
            continue
        seconds = _step_seconds(posed, fold, schedule)
        if best is None or seconds < best.step_seconds:
            best = Folded(fold, posed, evaluation, seconds)
    return best


def device_loads(evaluation: Evaluation, device_of_stage: Sequence[int]) -> FloatArray:
    """Shape [d]: the loads of each device's stages together."""
    loads: FloatArray = np.zeros(max(device_of_stage) + 1)
    np.add.at(loads, list(device_of_stage), evaluation.load_seconds)
    return loads


def _computing(evaluation: Evaluation, device_of_stage: Sequence[int]) -> float:
    """The most that a device computes for one micro-batch."""
    seconds = evaluation.forward_seconds + evaluation.backward_seconds
    return float(np.bincount(np.asarray(device_of_stage), seconds).max())


def stage_costs(evaluation: Evaluation) -> list[Costs]:
    """Seconds of each stage's forward and backward, for its schedule."""
    forward, backward = evaluation.forward_seconds, evaluation.backward_seconds
    return list(zip(forward.tolist(), backward.tolist(), strict=True))


def folds(problem: Problem) -> Iterator[Fold]:
    """Placements of METIS's parts, with ever fewer stages for each of a few seeds.

    Stage s of `problem` stands for device s. Every placement keeps precedence, has the clusters
    that are pinned to the last stage in its last stage, and a stage on every device. Other pins,
    memory and the devices' loads are for the caller to check. O(r (n + m)) each, r runs.
    """
    if problem.n < problem.n_stages:
        return
    bare, count = _bare(problem), _SEEDS // (problem.n * problem.n_stages**2)
    for seed in range(1, 1 + max(1, min(_MOST_SEEDS, count))):
        for recursive in (False, True):
            part = _with_the_end(problem, kway_parts(problem, seed, recursive))
            if len(np.unique(part)) == problem.n_stages:
                yield from _ever_fewer(bare, walk(problem, part))


def on_devices(problem: Problem, device_of_stage: Sequence[int]) -> Problem:
    """The problem for k stages on devices that stages 0..d-1 of `problem` stand for.

    Stages of one device exchange values for nothing. What is pinned to the last stage stays so.
    """
    owner = np.asarray(device_of_stage)
    one = owner[:, None] == owner
    return replace(
        problem,
        n_stages=len(owner),
        pins=np.where(problem.pins == problem.n_stages - 1, len(owner) - 1, problem.pins),
        device_kind=problem.device_kind[owner],
        memory_limit_bytes=problem.memory_limit_bytes[owner],
        in_flight=problem.in_flight[owner],
        link_latency_seconds=np.where(one, 0.0, problem.link_latency_seconds[owner][:, owner]),
        link_seconds_per_byte=np.where(one, 0.0, problem.link_seconds_per_byte[owner][:, owner]),
    )


def _posed(problem: Problem, fold: Fold) -> tuple[Problem, Evaluation]:
    posed = on_devices(problem, fold.device_of_stage)
    return posed, evaluate(posed, Assignment(fold.stage))


def _sharing(problem: Problem, fold: Fold, posed: Problem) -> Problem:
    """With the memory that a device's other stages leave as the limit of each."""
    owner = np.asarray(fold.device_of_stage)
    needed = evaluate(posed, Assignment(fold.stage)).memory_bytes
    taken = np.bincount(owner, needed)[owner] - needed
    limits = np.maximum(problem.memory_limit_bytes[owner] - taken, 0.0)
    return replace(posed, memory_limit_bytes=limits)


def _step_seconds(posed: Problem, fold: Fold, schedule: Schedule) -> float:
    costs = step_costs(Costed(posed, ("",), np.zeros(posed.n), 0.0), posed, fold.stage, None)
    edges = [StageEdge(e.source, e.destination, e.backward_seconds > 0) for e in costs.edges]
    return simulate(expand(schedule, edges, ahead=1), costs).step_seconds


def _bare(problem: Problem) -> Problem:
    """Without what memory holds, which loads do not depend on: quicker to evaluate."""
    shared = np.diff(problem.weights.offsets) > 1
    users = [problem.weights[weight].tolist() for weight in np.flatnonzero(shared).tolist()]
    return replace(
        problem,
        weights=Incidence.of(users),
        weight_bytes=problem.weight_bytes[shared],
        weight_sync_seconds=problem.weight_sync_seconds[shared],
        saved=Incidence.of([]),
        saved_bytes=np.zeros(0),
    )


def _with_the_end(problem: Problem, part: IntArray) -> IntArray:
    """The parts, with all that is pinned to the last stage in the part that has most of it."""
    end = problem.pins == problem.n_stages - 1
    if not end.any():
        return part
    seconds = problem.forward_seconds[0] + problem.backward_seconds[0]
    work = np.bincount(part[end], seconds[end] + 1e-12, problem.n_stages)
    return np.where(end, int(work.argmax()), part)


def _ever_fewer(problem: Problem, runs: Runs) -> Iterator[Fold]:
    """The runs, borders moved; then with one run given away, and so on to one a device.

    While there are many it is the shortest that goes, then the one whose loss costs least. Of
    larger numbers every other one is shown.
    """
    d, seconds = problem.n_stages, mean_seconds(problem)
    while True:
        many = len(runs.device) > _MOST_STAGES * d
        if not many and (len(runs.device) <= 2 * d or len(runs.device) % 2 == 0):
            yield _evened(problem, runs).fold(problem.n)
        loose = [run for run, device in enumerate(runs.device) if runs.device.count(device) > 1]
        if many:
            loose = [min(loose, key=lambda run: seconds[list(runs.clusters[run])].sum())]
        choices = [
            (_load(problem, made), made)
            for run in loose
            for other in sorted(runs.neighbours(run))
            for made in [runs.given(run, other)]
        ]
        if not choices:
            return
        runs = min(choices, key=lambda choice: choice[0])[1]


def _evened(problem: Problem, runs: Runs) -> Runs:
    """With borders moved while that lowers the largest device load."""
    best = _load(problem, runs)
    for by in (sign * shift for shift in _SHIFTS for sign in (1, -1)):
        for border in range(len(runs.device) - 1):
            made = runs.shifted(border, by)
            while made is not None and (load := _load(problem, made)) < best:
                runs, best = made, load
                made = runs.shifted(border, by)
    return runs


def _load(problem: Problem, runs: Runs) -> tuple[float, float]:
    """The largest device load, and how uneven they are."""
    load = evaluate(problem, Assignment(runs.owners(problem.n))).load_seconds
    return float(load.max()), float((load**2).sum())
