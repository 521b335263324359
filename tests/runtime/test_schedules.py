"""Every schedule runs as it is written down, and trains as the unsplit model does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import stagecut
from stagecut.ir.errors import ArgumentError, ScheduleError
from stagecut.ir.schedule import Compute, Phase, Schedule
from stagecut.partitioner.schedules import SCHEDULES, schedule_of
from stagecut.partitioner.schedules.gpipe import gpipe
from stagecut.runtime.channels import Channels
from stagecut.runtime.stage import StageRunner
from tests.cases import table
from tests.cases.models import Chain, Fan, Norms, SharedLayer, Tied
from tests.support.equality import (
    Case,
    assert_trained_alike,
    cut,
    train_pipeline,
    train_unsplit,
)
from tests.support.flops import Flops
from tests.support.ranks import results, run_ranks

TRAINING = [name for name in SCHEDULES if name != "forward"]
TWICE = ("interleaved", "zb_v", "dualpipe_v")
"""Schedules of two stages a device."""


def mean_square(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def rows(n: int = 8) -> torch.Tensor:
    return torch.randn(n, 8)


MODELS: dict[str, Callable[[], Case]] = {
    "chain": lambda: Case(Chain(), (rows(),), {}, mean_square),
    "fan": lambda: Case(Fan(), (rows(),), {}, mean_square),
    "tied": lambda: Case(Tied(), (torch.randint(0, 16, (8, 5)),), {}, mean_square),
    "shared layer": lambda: Case(SharedLayer(), (rows(),), {}, mean_square),
    "norms": lambda: Case(Norms(), (torch.randn(8, 3, 6, 6),), {}, mean_square),
}


def built(name: str) -> Case:
    torch.manual_seed(0)
    return MODELS[name]()


def example(case: Case) -> tuple[torch.Tensor, ...]:
    return tuple(x[:2] for x in case.args)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("n_stages", [2, 4])
def test_trains_as_the_unsplit_model(model: str, n_stages: int) -> None:
    case = built(model)
    want = train_unsplit(case, 4, 2)
    plans: dict[tuple[int, ...], stagecut.Plan] = {}
    flops = set()
    for schedule in TRAINING:
        devices = n_stages // 2 if schedule in TWICE else n_stages
        if schedule == "interleaved" and devices == 1:
            continue
        case = built(model)
        placement = SCHEDULES[schedule](n_stages, devices, 4).device_of_stage
        plan = plans.get(placement) or stagecut.partition(
            case.model, devices, example(case), schedule=schedule, n_microbatches=4
        )
        plans[placement] = plan
        assert plan.n_stages == n_stages
        pipe = stagecut.pipeline(
            plan, case.model, loss_fn=case.loss, runtime="local", schedule=schedule
        )
        with Flops() as counter:
            got = train_pipeline(case, pipe, 2)
        assert_trained_alike(got, want)
        flops.add(counter.total)
    assert len(flops) == 1, "some schedule computes something twice"


def test_what_is_recomputed_is_so_once() -> None:
    case = table.built("gpt2")
    want = train_unsplit(case, 4, 1)
    args, kwargs, _ = cut((case.args, case.kwargs, None), 4)[0]
    plan = stagecut.partition(case.model, 2, args, kwargs, n_microbatches=4, recompute="full")
    flops = []
    for schedule in ("1f1b", "zero_bubble"):
        case = table.built("gpt2")
        pipe = stagecut.pipeline(
            plan, case.model, loss_fn=case.loss, runtime="local", schedule=schedule
        )
        assert all(runner.recomputes for runner in pipe.runtime.runners.values())
        with Flops() as counter:
            got = train_pipeline(case, pipe, 1)
        assert_trained_alike(got, want)
        flops.append(counter.total)
    assert flops[0] == flops[1]


def one_at_a_time(n_stages: int, n_devices: int, n_microbatches: int) -> Schedule:
    """A user's own: each micro-batch forward and back before the next."""
    lists: list[list[Compute]] = [[] for _ in range(n_devices)]
    for microbatch in range(n_microbatches):
        for stage in range(n_stages):
            lists[stage % n_devices] += [Compute(stage, Phase.FORWARD, microbatch)]
        for stage in reversed(range(n_stages)):
            lists[stage % n_devices] += [Compute(stage, Phase.BACKWARD, microbatch)]
    return schedule_of("one_at_a_time", lists)


TEXT = """# by hand
0F0 0F1 0I0 0W0 0B1
1F0 1B0 1F1 1I1 1W1
"""


@pytest.mark.parametrize("kind", ["text", "path", "function"])
def test_the_users_own_schedule_is_planned_checked_run_and_saved(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(TEXT)
    given: Any = {"text": TEXT, "path": path, "function": one_at_a_time}[kind]
    case = built("chain")
    want = train_unsplit(case, 2, 2)
    n = 2 if kind == "function" else None
    plan = stagecut.partition(case.model, 2, example(case), schedule=given, n_microbatches=n)
    assert plan.data.n_microbatches == 2
    name = "one_at_a_time" if kind == "function" else "by hand"
    assert f"schedule {name}, 2 micro-batches a step" in str(plan)
    plan.save(tmp_path / "plan.json")
    loaded = stagecut.Plan.load(tmp_path / "plan.json")
    pipe = stagecut.pipeline(loaded, case.model, loss_fn=case.loss, runtime="local")
    assert_trained_alike(train_pipeline(case, pipe, 2), want)
    assert pipe.last_timeline().name == name


def test_a_plan_runs_under_another_schedule_of_its_placement() -> None:
    case = built("chain")
    want = train_unsplit(case, 2, 1)
    plan = stagecut.partition(case.model, 2, example(case))
    pipe = stagecut.pipeline(plan, case.model, loss_fn=case.loss, runtime="local", schedule=TEXT)
    assert_trained_alike(train_pipeline(case, pipe, 1), want)
    assert [str(ran.action) for ran in pipe.runtime.recorded()[1].actions if "1" in str(ran)]


def test_a_wrong_schedule_never_starts() -> None:
    case = built("chain")
    with pytest.raises(ScheduleError, match="1F1 never runs"):
        stagecut.partition(case.model, 2, example(case), schedule=TEXT.replace("1F1 ", ""))
    with pytest.raises(ArgumentError, match="by hand is for 2 devices, not 3"):
        stagecut.partition(case.model, 3, example(case), schedule=TEXT)
    with pytest.raises(ArgumentError, match="by hand is for 2 micro-batches, not 4"):
        stagecut.partition(case.model, 2, example(case), schedule=TEXT, n_microbatches=4)
    with pytest.raises(ArgumentError, match=r"no schedule file '1f2b'.*zero_bubble"):
        stagecut.partition(case.model, 2, example(case), schedule="1f2b")
    with pytest.raises(ArgumentError, match="returned list; return a Schedule"):
        stagecut.partition(case.model, 2, example(case), schedule=lambda k, d, m: [])  # type: ignore
    plan = stagecut.partition(case.model, 2, example(case))
    pipe = stagecut.pipeline(plan, case.model, loss_fn=case.loss, runtime="local", schedule=TEXT)
    with pytest.raises(ArgumentError, match="is for 2 micro-batches, and this step has 1"):
        pipe.train_step(rows(1))
    pipe = stagecut.pipeline(plan, case.model, runtime="local", schedule="zb_v")
    with pytest.raises(ArgumentError, match="zb_v runs two stages a device"):
        pipe.train_step(rows())


def test_a_measured_step_is_drawn_beside_the_predicted(tmp_path: Path) -> None:
    case = built("chain")
    plan = stagecut.partition(case.model, 2, example(case), n_microbatches=4)
    pipe = stagecut.pipeline(plan, case.model, loss_fn=case.loss, runtime="local")
    with pytest.raises(ArgumentError, match="no step has run"):
        pipe.last_timeline()
    pipe.train_step(*case.args)
    plan.to_trace(tmp_path / "t.json", measured=pipe.last_timeline())
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert [n.split(":")[0] for n in names] == ["predicted"] * 2 + ["measured"] * 2
    computes = [e for e in events if e["ph"] == "X" and e.get("cat") in ("forward", "backward")]
    assert len(computes) == 2 * 2 * 2 * 4


class Log:
    """What a process is seen to do, from outside the worker."""

    def __init__(self) -> None:
        self.actions: list[str] = []

    def watching(self) -> list[Any]:
        spied = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
        patches = [
            patch.object(StageRunner, name, self._spy(getattr(StageRunner, name), letter))
            for name, letter in spied.items()
        ]
        for name, mark in {"post_send": "!", "post_receive": "?"}.items():
            patches.append(patch.object(Channels, name, self._spy(getattr(Channels, name), mark)))
        return patches

    def _spy(self, method: Callable[..., Any], mark: str) -> Callable[..., Any]:
        def spy(self_: Any, what: Any, *args: Any, **kwargs: Any) -> Any:
            if mark in "!?":
                self.actions.append(f"{what}{mark}")
            else:
                index = getattr(what, "index", what)
                self.actions.append(f"{self_.program.index}{mark}{index}")
            return method(self_, what, *args, **kwargs)

        return spy


def run_every_schedule(rank: int, world: int) -> list[str]:
    log = Log()
    for spy in log.watching():
        spy.start()
    ran = []
    plans: dict[tuple[int, ...], stagecut.Plan] = {}
    for schedule in (*TRAINING, "forward", one_at_a_time):
        name = getattr(schedule, "__name__", schedule)
        case = built("fan" if world == 2 else "tied")
        n_stages = 2 * world if schedule in TWICE else world
        generator = SCHEDULES.get(name, gpipe)
        placement = generator(n_stages, world, 4).device_of_stage
        if placement not in plans:
            plans[placement] = stagecut.partition(
                case.model, world, example(case), n_microbatches=4,
                schedule="1f1b" if name == "forward" else schedule,
            )  # fmt: skip
        want = train_unsplit(case, 4, 2)
        pipe = stagecut.pipeline(
            plans[placement], case.model, loss_fn=case.loss,
            schedule=None if name == "forward" else schedule,
        )  # fmt: skip
        if name == "forward":
            expected = case.model(*case.args)
            log.actions.clear()
            torch.testing.assert_close(pipe(*case.args), expected)
        else:
            got = train_pipeline(case, pipe, 2)
            assert_trained_alike(got, want, whole=False)
        _check_order(name, rank, pipe, log)
        ran.append(name)
        torch.distributed.barrier()
    return ran


def _check_order(name: str, rank: int, pipe: Any, log: Log) -> None:
    """What was planned, what was recorded and what was seen are one list."""
    planned = [str(action) for action in pipe._last.devices[rank]]
    recorded = [str(ran.action) for ran in pipe.runtime.recorded()[rank].actions]
    assert recorded == planned, name
    assert log.actions[-len(planned) :] == planned, name
    line = pipe.last_timeline()
    assert (line.spans.end_seconds > line.spans.start_seconds).all()
    assert (line.transfers.end_seconds >= line.transfers.start_seconds).all()
    for device in range(line.n_devices):
        mine = line.spans.device == device
        starts, ends = line.spans.start_seconds[mine], line.spans.end_seconds[mine]
        assert (starts[1:] >= ends[:-1]).all(), name
    assert 0 <= line.bubble_share < 1


@pytest.mark.parametrize("world", [2, 4])
def test_every_schedule_on_processes(world: int) -> None:
    ran = results(run_ranks(world, run_every_schedule, world, seconds=280))
    assert ran == [[*TRAINING, "forward", "one_at_a_time"]] * world
