"""A plan of one stage a device, or of METIS's parts as several: whichever steps faster."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from stagecut.ir.errors import ArgumentError
from stagecut.ir.plan import Plan
from stagecut.ir.problem import Problem
from stagecut.ir.solution import Assignment, Trial
from stagecut.partitioner import Folded, best_fold, device_loads, evaluate
from stagecut.passes import Clustering
from stagecut.placing import placed
from stagecut.report.units import seconds_text
from stagecut.timetables import FOLDED, ScheduleLike

_METHODS = ("auto", "metis")


def check_folded(schedule: ScheduleLike, method: str, pinned: bool) -> None:
    """Refuses what cannot go with the schedule `folded`.

    Raises:
        ArgumentError: says what to give instead.
    """
    if schedule != FOLDED:
        return
    if method not in _METHODS:
        raise ArgumentError(
            f'schedule="folded" places METIS\'s parts, and the method is {method!r}; use "metis", '
            'or "auto", which takes them where a step is then faster'
        )
    if pinned:
        raise ArgumentError(
            'pins name stages, whose number schedule="folded" finds itself; leave the pins out, or '
            "take another schedule"
        )


def folded_plan(plan: Plan, problem: Problem, clustering: Clustering, method: str) -> Plan:
    """The plan with each device's METIS part as one stage or several.

    `plan` has stage s on device s. Under the method `auto` it stays as it is where its step is no
    slower; the note tells both. So it does where no placement is within memory.
    """
    started = time.perf_counter()
    found = best_fold(problem, plan.n_microbatches)
    if found is None:
        why = "No placement of METIS's parts on the devices was found within their memory."
        return replace(plan, notes=(*plan.notes, f"{why} Every device has one stage."))
    trial = Trial(
        FOLDED,
        float(device_loads(found.evaluation, found.fold.device_of_stage).max()),
        _bytes_between_devices(problem, found),
        time.perf_counter() - started,
        f"{found.problem.n_stages} stages",
    )
    bare = replace(
        plan,
        device_of_stage=found.fold.device_of_stage,
        method=FOLDED,
        trials=(*plan.trials, trial),
        lower_bound_seconds=min(_least_load(problem), trial.bottleneck_seconds),
        optimal=False,
    )
    made = placed(bare, found.problem, clustering, found.fold.stage, found.evaluation)
    faster = made.step_seconds < plan.step_seconds
    kept = made if faster or method == "metis" else replace(plan, trials=made.trials)
    steps = (
        f"METIS's parts as {made.n_stages} stages on devices "
        f"{', '.join(map(str, made.device_of_stage))} take {seconds_text(made.step_seconds)} a "
        f"step, one stage a device takes {seconds_text(plan.step_seconds)}."
    )
    of_devices = "The bottleneck is the load of a device, all its stages together."
    notes = (steps, of_devices) if kept is made else (steps,)
    return replace(kept, notes=(*plan.notes, *notes))


def _bytes_between_devices(problem: Problem, found: Folded) -> float:
    """As if the stages of a device were one; precedence is not asked."""
    owner = np.asarray(found.fold.device_of_stage)
    return evaluate(problem, Assignment(owner[found.fold.stage])).bytes_cut


def _least_load(problem: Problem) -> float:
    """No placement of the model on the devices has a smaller largest load."""
    seconds = problem.forward_seconds + problem.backward_seconds
    least = seconds.min(axis=0)
    return max(float(least.sum()) / problem.n_stages, float(least.max(initial=0.0)))
