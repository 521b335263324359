"""Weighs every choice and simulates those that may be the fastest.

Each choice gets a cut, a memory peak and a lower bound of its step. Choices are simulated in the
order of their bounds until no bound is below the best step: nothing that is left out could win, on
the cuts that are compared. A choice whose cut does not fit is cut again within its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stagecut.ir.device import Cluster
from stagecut.ir.errors import InfeasibleError
from stagecut.ir.plan import Alternative
from stagecut.ir.problem import FloatArray, IntArray, Problem
from stagecut.ir.schedule import Schedule, StageEdge
from stagecut.ir.timeline import StepCosts, Timeline
from stagecut.partitioner.planning.choices import Choice
from stagecut.partitioner.planning.costing import (
    Costed,
    SumSeconds,
    device_bytes,
    least_seconds,
    quick_cut,
    quick_relieved_cut,
    recomputing,
    resized,
    step_costs,
)
from stagecut.partitioner.relief import bought
from stagecut.partitioner.schedules import expand, in_flight, make_schedule, simulate

HALVES = ("zero_bubble", "zb_v", "dualpipe_v")
GIB = 2**30
SIMULATED = 20_000
"""Stages times micro-batches of the longest step that is simulated to its end."""
HOPELESS = 1.1
"""Average peak over limit from which another cut is not looked for: a cut moves bytes from device
to device, and saves few."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What every choice shares."""

    costed: Callable[[int], Costed]
    """The model's costs at a number of rows a micro-batch."""
    cluster: Callable[[int], Cluster]
    """The devices of one pipeline, for a number of replicas."""
    sums: Callable[[int], SumSeconds | None]
    """For a number of replicas, what a sum of gradients over them takes; None for one."""
    limit_bytes: float
    """Of every device."""


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A choice with the cut that ignores memory."""

    choice: Choice
    costs: StepCosts
    likely: StepCosts
    """With what its stages lack of memory recomputed."""
    least: float
    """Seconds that its step then takes at least."""


@dataclass(frozen=True, slots=True)
class _Fitting:
    """A cut within memory."""

    costs: StepCosts
    recompute: bool
    """Whether some stage recomputes."""


@dataclass(frozen=True, slots=True)
class _Rejected:
    """Why a choice cannot be taken."""

    reason: str
    lacking_bytes: float = float("inf")
    """On the device that lacks most."""
    worked_out: bool = False
    """Whether all terms are in `lacking_bytes`."""


@dataclass(slots=True)
class _Seen:
    """What choices have in common, worked out once."""

    cuts: dict[tuple[int, tuple[str, ...]], IntArray | None] = field(default_factory=dict)
    """By number of stages; sizes change all costs alike, and one cut will do to rank them."""
    priced: dict[tuple[int, int, int], StepCosts | None] = field(default_factory=dict)
    """By replicas, rows and number of stages."""

    timetables: dict[tuple[str, int, int], Schedule] = field(default_factory=dict)
    """By name, devices and micro-batches."""

    def timetable(self, choice: Choice, m: int) -> Schedule:
        """The schedule of a choice, for m micro-batches."""
        key = choice.schedule, choice.n_devices, m
        if key not in self.timetables:
            made = make_schedule(choice.schedule, choice.n_stages, choice.n_devices, m)
            self.timetables[key] = made
        return self.timetables[key]

    def full(self, choice: Choice) -> Schedule:
        """A schedule with the memory peak of the choice's.

        All but GPipe's are there after three fills of the pipeline.
        """
        m = choice.n_microbatches
        return self.timetable(
            choice, m if choice.schedule == "gpipe" else min(m, 3 * choice.n_devices)
        )

    def stages(self, problem: Problem) -> IntArray | None:
        """The stage of every cluster in a cut that ignores memory; None where there is no cut."""
        what = problem.n_stages, problem.names
        if what not in self.cuts:
            self.cuts[what] = quick_cut(problem)
        return self.cuts[what]

    def costs(self, choice: Choice, costed: Costed, setting: Setting) -> StepCosts | None:
        """Of the choice on that cut."""
        key = choice.replicas, choice.rows, choice.n_stages
        if key not in self.priced:
            problem = resized(costed, setting.cluster(choice.replicas), choice.n_stages, None)
            stage, sums = self.stages(problem), setting.sums(choice.replicas)
            priced = None if stage is None else step_costs(costed, problem, stage, sums)
            self.priced[key] = priced
        return self.priced[key]


def search(found: Sequence[Choice], setting: Setting) -> tuple[Alternative, ...]:
    """The choices in order of merit, the chosen one first.

    Raises:
        InfeasibleError: nothing fits; names the choice that lacks least, and its largest terms.
    """
    seen = _Seen()
    results = [(choice, _weigh(choice, setting, seen)) for choice in found]
    rejected = [(c, r) for c, r in results if isinstance(r, _Rejected)]
    table, best = [], float("inf")
    too_many: dict[tuple[str, int], int] = {}
    for one in sorted((r for _, r in results if isinstance(r, _Weighed)), key=lambda w: w.least):
        choice = one.choice
        kind = choice.schedule, choice.replicas
        if one.least >= best:
            table.append(_row(choice, one.least, note="no faster: takes this at least"))
        elif choice.rows >= too_many.get(kind, choice.rows + 1):
            table.append(_row(choice, one.least, note="does not fit: nor do fewer rows"))
        elif isinstance(fits := _within_memory(one, setting, seen), _Rejected):
            rejected.append((choice, fits))
            too_many[kind] = choice.rows
        else:
            row = _simulated(choice, fits, seen)
            best = min(best, row.step_seconds)
            table.append(row)
    table += [_row(choice, float("inf"), note=why.reason) for choice, why in rejected]
    if best == float("inf"):
        raise _nothing(rejected, len(found))
    return _ranked(table)


def _weigh(choice: Choice, setting: Setting, seen: _Seen) -> _Weighed | _Rejected:
    """The choice on a cut that ignores memory."""
    costed, d = setting.costed(choice.rows), choice.n_devices
    if choice.n_stages > costed.problem.n:
        return _Rejected(f"only {costed.problem.n} groups of ops can be separated")
    held, present = float(costed.problem.weight_bytes.sum()), setting.limit_bytes * d
    if held > present:
        reason = (
            f"does not fit: weights, gradients and optimizer state are {held / GIB:.1f} GiB, "
            f"a replica's devices have {present / GIB:.1f}"
        )
        return _Rejected(reason, (held - present) / d)
    costs = seen.costs(choice, costed, setting)
    if costs is None:
        return _Rejected(f"no cut into {choice.n_stages} stages was found")
    likely = costs
    if costed.relief is not None and _lacks(choice, costs, setting, seen):
        problem = _limited(choice, setting, seen)
        stage = seen.stages(problem)
        if stage is not None:
            likely = recomputing(costs, bought(problem, stage, costed.relief))
    halves, m = choice.schedule in HALVES, choice.n_microbatches
    least = least_seconds(likely, choice.device_of_stage, m, halves)
    return _Weighed(choice, costs, likely, least)


def _lacks(choice: Choice, costs: StepCosts, setting: Setting, seen: _Seen) -> bool:
    return bool((device_bytes(seen.full(choice), costs) > setting.limit_bytes).any())


def _limited(choice: Choice, setting: Setting, seen: _Seen) -> Problem:
    """The choice's problem within memory, which stages of one device share evenly."""
    limit = setting.limit_bytes * choice.n_devices / choice.n_stages
    problem = resized(
        setting.costed(choice.rows),
        setting.cluster(choice.replicas),
        choice.n_stages,
        np.full(choice.n_stages, limit),
    )
    return replace(problem, in_flight=np.array(in_flight(seen.full(choice))))


def _within_memory(weighed: _Weighed, setting: Setting, seen: _Seen) -> _Fitting | _Rejected:
    """The costs of a cut that fits the devices, if one is found."""
    choice, schedule = weighed.choice, seen.full(weighed.choice)
    peaks, costed = device_bytes(schedule, weighed.costs), setting.costed(weighed.choice.rows)
    if (peaks <= setting.limit_bytes).all():
        return _Fitting(weighed.costs, recompute=False)
    problem, sums = _limited(choice, setting, seen), setting.sums(choice.replicas)
    if peaks.mean() <= HOPELESS * setting.limit_bytes:
        stage = quick_cut(problem)
        if stage is not None:
            return _Fitting(step_costs(costed, problem, stage, sums), recompute=False)
    relieved = device_bytes(schedule, weighed.likely)
    if costed.relief is not None and relieved.mean() <= HOPELESS * setting.limit_bytes:
        stage = quick_relieved_cut(problem, costed.relief)
        if stage is not None:
            costs = step_costs(costed, problem, stage, sums)
            return _Fitting(recomputing(costs, bought(problem, stage, costed.relief)), True)
    return _lacking(weighed, schedule, peaks, setting.limit_bytes)


def _lacking(weighed: _Weighed, schedule: Schedule, peaks: FloatArray, limit: float) -> _Rejected:
    device = int(np.argmax(peaks))
    stages = [s for s, owner in enumerate(schedule.device_of_stage) if owner == device]
    static = sum(weighed.costs.static_bytes[stage] for stage in stages)
    reason = (
        f"does not fit: device {device} needs {peaks[device] / GIB:.1f} GiB of {limit / GIB:.1f}, "
        f"saved activations {(peaks[device] - static) / GIB:.1f}, the rest weights, gradients, "
        "optimizer state and workspace"
    )
    return _Rejected(reason, float(peaks[device]) - limit, True)


def _simulated(choice: Choice, fits: _Fitting, seen: _Seen) -> Alternative:
    """The step, simulated; a long one until its rate is settled, and carried on at that rate."""
    d, m, costs, again = choice.n_devices, choice.n_microbatches, fits.costs, fits.recompute
    peak = float(device_bytes(seen.full(choice), costs).max())
    if choice.n_stages * m <= SIMULATED or m <= 3 * d:
        line = _run(seen.timetable(choice, m), costs)
        return _row(choice, line.step_seconds, peak, line.bubble_share, recompute=again)
    fewer, more = (_run(seen.timetable(choice, n * d), costs) for n in (2, 3))
    rate = (more.pipeline_seconds - fewer.pipeline_seconds) / d
    pipeline = more.pipeline_seconds + (m - 3 * d) * rate
    step = pipeline + more.step_seconds - more.pipeline_seconds
    computing = float(more.compute_seconds.sum())
    at_the_end = float(more.busy_seconds.sum()) - computing
    bubble = 1 - (computing * m / (3 * d) + at_the_end) / (d * step)
    return _row(choice, step, peak, bubble, recompute=again)


def _run(schedule: Schedule, costs: StepCosts) -> Timeline:
    edges = [StageEdge(e.source, e.destination, e.backward_seconds > 0) for e in costs.edges]
    return simulate(expand(schedule, edges, ahead=1), costs)


def _nothing(rejected: Sequence[tuple[Choice, _Rejected]], n: int) -> InfeasibleError:
    # A choice that is over by its weights alone is farther off than it looks.
    cut = [item for item in rejected if item[1].worked_out] or rejected
    choice, why = min(cut, key=lambda item: item[1].lacking_bytes)
    return InfeasibleError(
        f"none of {n} choices fits. The nearest, {choice.schedule} on {choice.replicas} × "
        f"{choice.n_devices} devices with {choice.n_microbatches} micro-batches of {choice.rows} "
        f"rows: {why.reason}. Take more devices, fewer rows, a smaller dtype, or an optimizer "
        "with less state"
    )


def _row(
    choice: Choice, seconds: float, peak: float = 0.0, bubble: float = 0.0, note: str = "",
    recompute: bool = False,
) -> Alternative:  # fmt: skip
    return Alternative(
        schedule=choice.schedule,
        replicas=choice.replicas,
        n_stages=choice.n_stages,
        n_microbatches=choice.n_microbatches,
        rows=choice.rows,
        recompute=recompute,
        step_seconds=seconds,
        memory_bytes=peak,
        bubble=bubble,
        note=note,
    )


def _ranked(table: Sequence[Alternative]) -> tuple[Alternative, ...]:
    """Those simulated by time; then the others."""
    ran = sorted((row for row in table if not row.note), key=lambda row: row.step_seconds)
    best = ran[0].step_seconds
    rows = [replace(ran[0], note="chosen")]
    rows += [replace(row, note=f"{row.step_seconds / best - 1:.1%} slower") for row in ran[1:]]
    rest = sorted((row for row in table if row.note), key=lambda row: row.step_seconds)
    return (*rows, *rest)
