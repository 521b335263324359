"""From a plan to this process's stages, connected: loading, checking, agreeing between ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from stagecut.codegen.folder import read_folder, stage_tensors
from stagecut.frozen import check_modes
from stagecut.ir import plan as ir
from stagecut.ir.errors import ArgumentError, PlanError, StagecutError
from stagecut.ir.plan import load_plan
from stagecut.ir.program import PipelineProgram
from stagecut.opaque import place_modules
from stagecut.pipe import LossFn, Pipeline, Runtime
from stagecut.plan import Plan
from stagecut.prediction import program_of
from stagecut.runtime.agreement import agree, share
from stagecut.runtime.distributed import DistributedRuntime, check_world
from stagecut.runtime.layout import Layout
from stagecut.runtime.local import LocalRuntime
from stagecut.tensors import check_weights, weights_of
from stagecut.timetables import FOLDED, ScheduleLike, microbatches_of


def connect(
    plan: Plan | str | Path,
    model: nn.Module | None,
    *,
    loss_fn: LossFn | None,
    runtime: str,
    n_microbatches: int | None,
    schedule: ScheduleLike | None,
    allow_imports: bool,
) -> Pipeline:
    """What `stagecut.pipeline` does; see there."""
    if runtime not in ("auto", "local", "distributed"):
        raise ArgumentError(f"no runtime {runtime!r}; choose local, distributed or auto")
    if n_microbatches is not None and n_microbatches < 1:
        raise ArgumentError(f"n_microbatches is {n_microbatches}; give 1 or more")
    if not isinstance(plan, Plan):
        _check_folder(Path(plan), model)
    planned = None if schedule is None else microbatches_of(schedule)
    if runtime == "local" or (runtime == "auto" and not _several_ranks()):
        data, program, tensors = _load(plan, model, None, allow_imports)
        made: Runtime = LocalRuntime(program, tensors, data.device_of_stage)
    else:
        asked = f"{schedule} {n_microbatches}" if not callable(schedule) else schedule.__qualname__
        data, program, made = _distribute(plan, model, asked, allow_imports)
    if isinstance(plan, Plan):
        place_modules(data, made.runners, model)
    return Pipeline(
        data,
        program,
        made,
        loss_fn,
        n_microbatches or planned or data.n_microbatches,
        schedule or data.schedule,
    )


def _check_folder(folder: Path, model: nn.Module | None) -> None:
    if folder.is_file():
        raise PlanError(f"{folder} is a file; load a saved plan by Plan.load({str(folder)!r})")
    if model is not None:
        raise ArgumentError(
            f"the stages in {folder} have their own weights, so give no model; to use the model's, "
            f"load the plan alone: Plan.load({str(folder / 'plan.json')!r})"
        )


def _several_ranks() -> bool:
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _distribute(
    plan: Plan | str | Path, model: nn.Module | None, asked: str, allow_imports: bool
) -> tuple[ir.Plan, PipelineProgram, Runtime]:
    """Builds this rank's stages, once all ranks agree on the plan and fit it."""
    if not dist.is_initialized():
        dist.init_process_group()
    place = _place()
    problem, loaded = None, None
    try:
        data = _data(plan)
        layout = Layout(data.device_of_stage, data.replicas)
        check_world(layout)
        device = layout.device(dist.get_rank())
        mine = [s for s, owner in enumerate(data.device_of_stage) if owner == device]
        loaded = _load(plan, model, mine, allow_imports)
    except StagecutError as error:
        problem = str(error)
    ours = f"{_summary(loaded[0])} {asked}" if loaded else ""
    theirs = share(ours)
    if loaded and problem is None and ours != theirs:
        problem = "its plan differs from rank 0's, or its schedule; give every rank the same"
    agree(problem)
    assert loaded is not None  # agree() has raised otherwise
    data, program, tensors = loaded
    moved = {name: _move(tensor, place) for name, tensor in tensors.items()}
    layout = Layout(data.device_of_stage, data.replicas)
    return data, program, DistributedRuntime(program, moved, layout, place)


def _summary(plan: ir.Plan) -> str:
    """What must be equal on every rank; how long the planner took need not be."""
    decisions = (
        plan.stages_of_ops,
        plan.device_of_stage,
        plan.replicas,
        plan.schedule,
        plan.n_microbatches,
        # Stages' seconds order the computes of a folded placement.
        plan.schedule == FOLDED and [(s.forward_seconds, s.backward_seconds) for s in plan.stages],
    )
    return f"{plan.fingerprint} {decisions} {plan.torch_version}"


def _place() -> torch.device:
    if torch.cuda.is_available() and dist.get_backend() != "gloo":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def _move(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
    """The same Parameter object on another device, as `model.to` does."""
    if tensor.device == place:
        return tensor
    if isinstance(tensor, nn.Parameter):
        tensor.data = tensor.data.to(place)
        return tensor
    return tensor.to(place)


def _data(plan: Plan | str | Path) -> ir.Plan:
    if isinstance(plan, Plan):
        return plan.data
    path = Path(plan) / "plan.json"
    try:
        return load_plan(path.read_text())
    except OSError as error:
        raise PlanError(f"{plan} is no export folder: {error}") from error


def _load(
    plan: Plan | str | Path,
    model: nn.Module | None,
    stages: Sequence[int] | None,
    allow_imports: bool,
) -> tuple[ir.Plan, PipelineProgram, dict[str, torch.Tensor]]:
    """A plan with the tensors of some of its stages, or of all."""
    if not isinstance(plan, Plan):
        data, program = read_folder(Path(plan), allow_imports)
        mine = range(len(program.stages)) if stages is None else stages
        held: dict[str, torch.Tensor] = {}
        for index in mine:
            held = {**stage_tensors(Path(plan), program.stages[index]), **held}
        return data, program, held
    if model is None:
        raise ArgumentError("pipeline(plan, model): give the model that was planned")
    tensors = weights_of(plan.data, model)
    check_weights(plan.data, tensors)
    check_modes(plan.data, model)
    _check_values(plan.data, tensors)
    return plan.data, program_of(plan.data), tensors


def _check_values(plan: ir.Plan, tensors: Mapping[str, torch.Tensor]) -> None:
    empty = [w.name for w in plan.graph.weights if tensors[w.name].is_meta]
    if empty:
        raise PlanError(
            f"{len(empty)} weights have no values, they are on the meta device "
            f"({', '.join(empty[:5])}); load the model first"
        )
