"""The straight line: model, graph, costed graph, problem, solution, plan; plan, programs, pipeline.

A newcomer who reads this file has understood the project: every arrow is a function of one room,
from frozen value to frozen value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stagecut.choosing import MICROBATCHES_PER_STAGE, Decision, Wish, check_wish, decide
from stagecut.clusters import find_cluster
from stagecut.collector import collector_held
from stagecut.connecting import connect
from stagecut.copies import pipeline_cluster
from stagecut.fewer import with_fewer
from stagecut.fitting import Costed, Fitter, Limit, Recomputation
from stagecut.folds import check_folded, folded_plan
from stagecut.frontend import sequence_first, trace
from stagecut.frozen import eval_note
from stagecut.given import check_choices, check_given, check_pins, example_of
from stagecut.ir import plan as ir
from stagecut.ir.device import Cluster
from stagecut.ir.graph import Graph
from stagecut.ir.problem import Problem
from stagecut.limits import parse_limit
from stagecut.opaque import told_what_is_whole
from stagecut.partitioner import solve, solve_relieved
from stagecut.partitioner.schedules import in_flight
from stagecut.passes import (
    Clustering,
    TiedWeights,
    build_problem,
    drop_dead,
    out_of_place,
    step_timings,
)
from stagecut.pipe import Pipeline
from stagecut.placing import placed
from stagecut.plan import Plan
from stagecut.pricing import Pricing, measured_note
from stagecut.resizing import with_rows
from stagecut.tensors import constants_of
from stagecut.tied import tied_notes, told_what_is_tied
from stagecut.timetables import FOLDED, ScheduleLike, stored, timetable


@collector_held()
def partition(
    model: nn.Module,
    n_gpus: int,
    example_args: Sequence[Any] | torch.Tensor = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    method: str = "auto",
    cluster: Cluster | str | Path | None = None,
    schedule: ScheduleLike = "1f1b",
    n_microbatches: int | str | None = None,
    batch_size: int | None = None,
    replicas: int | str = 1,
    training: bool = True,
    optimizer: str = "adamw",
    dtype: str | None = None,
    memory_limit: float | str | Sequence[float | str] | None = None,
    recompute: Recomputation = "auto",
    pins: Mapping[str, int] | None = None,
    split: Mapping[str, int | None] | None = None,
    tied: TiedWeights = "replicate",
    frontend: str = "auto",
    cost: str | Path = "roofline",
    time_limit: float = 10.0,
    allow_fewer: bool = False,
) -> Plan:
    """Plans how to cut a model into a pipeline of `n_gpus` devices.

    Args:
        model: Any module that torch.export can trace; its weights may be on the meta device.
        n_gpus: How many devices.
        example_args: Positional inputs of one micro-batch, for shapes and dtypes. Without any
            example, the model's own `dummy_inputs` are taken where it has them, or a shape that
            its first layer tells; the plan says so.
        example_kwargs: Keyword inputs of one micro-batch.
        method: `auto`, `dp`, `metis`, `exact`, or a baseline: `uniform`, `parameters`, `layers`,
            `tree`.
        cluster: The devices and links to plan for, their name (`"H100"`, `"p4d"`), or a TOML file
            (`stagecut.ir.clusterfile`), which `stagecut profile --links` writes. Without it, the
            GPUs that are present, else A100-80GB in nodes of 8; then the plan says so.
        schedule: `1f1b`, `gpipe`, `interleaved`, `zero_bubble`, `zb_v`, `dualpipe_v`, `forward`;
            or your own: a file of actions, its text, or a function (stages, devices, micro-batches)
            that returns a `Schedule`. It is checked before anything runs. `auto` takes the fastest
            that fits, by simulated step time. `folded` gives a device one part of the model by
            METIS, as several stages where skips lead back to it: with the method `metis` always,
            with `auto` where a step is then faster than with one stage a device.
        n_microbatches: Micro-batches a step; without it, four a stage. `auto` searches.
        batch_size: Rows of a step over all replicas; micro-batches get equal shares of them, and
            without `n_microbatches` their number is searched for.
        replicas: Copies of the pipeline, each on its share of the devices and of the batch; `auto`
            searches.
        training: Plan for training, in train mode but for modules that are frozen in eval in a
            model in train mode; False plans inference, with the model in eval mode.
        optimizer: Whose state the memory must hold and whose step is timed: `sgd`, `momentum`,
            `adam`, `adamw`, `adafactor`, `adam8bit`, `none`; with `_master` at the end
            (`adamw_master`) one that works on float32 copies of 16-bit weights.
        dtype: How float32 products run on GPUs that have TF32: `float32`, `tf32`, or None, as torch
            does unless told otherwise: TF32 in convolutions and recurrent layers alone. It changes
            the plan's figures and nothing in torch: allow TF32 there yourself. A model in bfloat16
            or float16, cast or under autocast, says so itself.
        memory_limit: Bytes or `"24GiB"`, for every device or one each. Without it, what the
            devices have; a plan that exceeds that says so, and is the best that ignores it.
        recompute: What the backward computes again instead of keeping it: `auto`, as many blocks as
            each stage's memory needs, under the method `auto` also for a faster cut; `never`;
            `full`, every block.
        pins: Module paths to stages that they must be in; kept by later edits of the plan.
        split: Inputs that every micro-batch gets whole: `{"mask": None}`.
        tied: A weight that is used in several places: `replicate`, held by every stage that uses
            it, its gradients summed once a step; `colocate`, all its users in one stage, with all
            that runs between them. The plan says what either costs.
        frontend: How to trace: `export`, torch.export on the whole model; `symbolic`, the same
            around modules that cannot be traced, which run as they are, uncut; `recorded`, with
            decisions by data as the example takes them, each checked in every step. `auto` takes
            the first that works; the plan says which, and why.
        cost: `roofline`, from the devices' published rates; `measured`, each distinct op timed on
            the device that is present; or the path of a profile that was measured elsewhere.
        time_limit: Seconds after which the search for a better cut stops, as a safety stop.
        allow_fewer: Whether the plan may leave devices out where a step of the same micro-batches
            is then faster, as where transfers take longer than computing; the plan says so either
            way. Also where the model cannot be cut into as many stages.

    Raises:
        ArgumentError: an argument cannot be used as given.
        TraceError: the model cannot be traced; names the user's file and line.
        InfeasibleError: nothing satisfies the constraints; says which term is too big, and where.
    """
    check_given(model, n_gpus, example_args)
    check_choices(method, recompute, optimizer, tied)
    check_pins(pins or {})
    devices = find_cluster(cluster, n_gpus).running(dtype)
    wish = Wish(schedule if training else "forward", n_microbatches, replicas, batch_size)
    check_wish(wish, n_gpus, pins or {})
    check_folded(wish.schedule, method, bool(pins))
    args, kwargs, assumed = example_of(model, example_args, example_kwargs)

    traced = trace(model, args, kwargs, training=training, split=split, frontend=frontend)
    graph = drop_dead(out_of_place(traced.graph))

    pricing = Pricing(model, devices, training, optimizer, cost)
    example, profile = graph, pricing.profile(graph)

    def costed_at(graph: Graph) -> Costed:
        return pricing.costed(graph, profile if graph is example else pricing.profile(graph))

    limit = parse_limit(memory_limit)
    way = decide(
        wish, graph, devices, costed_at,
        optimizer=optimizer, memory_limit=limit, recompute=recompute, tied=tied,
    )  # fmt: skip

    def cut(way: Decision, devices: Cluster, method: str) -> tuple[ir.Plan, Problem]:
        """The plan on some devices by one method, and the problem whose answer it is."""
        costed = costed_at(with_rows(graph, way.rows))
        one = pipeline_cluster(devices, way.replicas)
        times = timetable(
            way.schedule, len(one.devices), way.n_microbatches, MICROBATCHES_PER_STAGE
        )

        some = len(devices.devices) < n_gpus
        held = limit[: times.n_stages] if some and isinstance(limit, list) else limit

        def pose(costed: Costed, limit: Limit) -> tuple[Problem, Clustering]:
            return build_problem(
                costed[one.devices[0].name],
                cluster=one,
                n_stages=times.n_stages,
                n_microbatches=times.n_microbatches,
                in_flight=in_flight(times),
                memory_limit=limit,
                optimizer=optimizer,
                training=training,
                pins=pins or {},
                costed=costed,
                device_of_stage=times.device_of_stage,
                tied=tied,
            )

        fitter = Fitter(
            costed,
            one,
            times.device_of_stage,
            times.n_microbatches,
            optimizer,
            pose,
            lambda problem: solve(problem, method, time_limit),
            lambda problem, relief: solve_relieved(problem, relief, time_limit),
            weighs_recomputing=method == "auto",
        )
        with told_what_is_whole(traced), told_what_is_tied(graph, tied):
            fitted = fitter.fit(way.recompute, held)
        problem, clustering, solution = fitted.problem, fitted.clustering, fitted.solution
        stage, evaluation = solution.assignment.stage, solution.evaluation
        shared = tied_notes(
            fitted.graph, problem, clustering, stage, evaluation.bottleneck_seconds,
            times.n_microbatches, tied,
        )  # fmt: skip
        plan = ir.Plan(
            graph=fitted.graph,
            stages_of_ops=(),
            stages=(),
            cluster=devices,
            device_of_stage=times.device_of_stage,
            schedule=stored(way.schedule, times),
            n_microbatches=times.n_microbatches,
            optimizer=optimizer,
            method=solution.method,
            trials=solution.trials,
            bottleneck_seconds=0.0,
            lower_bound_seconds=solution.lower_bound_seconds,
            optimal=solution.optimal,
            stopped_by_clock=solution.stopped_by_clock,
            step_seconds=0.0,
            bubble=0.0,
            frontend=traced.frontend,
            torch_version=torch.__version__,
            constants=constants_of(traced.constants),
            step_timings=step_timings(graph, profile, optimizer),
            replicas=way.replicas,
            alternatives=way.alternatives,
            notes=(
                *assumed,
                *eval_note(model, graph),
                *sequence_first(model),
                *fitted.graph.notes,
                *fitted.notes,
                *shared,
                *measured_note(profile, fitted.graph),
            ),
            pins=tuple(sorted((pins or {}).items())),
            tied=tied,
        )
        made = placed(plan, problem, clustering, stage, evaluation)
        if made.schedule == FOLDED:
            made = folded_plan(made, problem, clustering, method)
        return made, problem

    least_stages = max((pins or {}).values(), default=0) + 1
    return Plan(with_fewer(cut, way, devices, method, least_stages, allow_fewer))


def pipeline(
    plan: Plan | str | Path,
    model: nn.Module | None = None,
    *,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    runtime: str = "auto",
    n_microbatches: int | None = None,
    schedule: ScheduleLike | None = None,
    allow_imports: bool = False,
) -> Pipeline:
    """Builds the stages of a plan and connects them.

    Under `torchrun` every rank calls it with the same plan and model and gets its own stages; in
    one process all stages run by turns.

    Args:
        plan: A plan, or the folder that `plan.export` wrote.
        model: The model that was planned; its parameters are used themselves, not copies. Not
            needed with a folder.
        loss_fn: `loss_fn(output)`, or `loss_fn(output, target)` where `train_step` gets a target;
            a mean over rows. Without it, the output itself or its `loss`.
        runtime: `local`, `distributed`, or `auto`: distributed where several ranks run.
        n_microbatches: Other than the plan's.
        schedule: Other than the plan's, with the stages on the same devices.
        allow_imports: Whether a folder's stages may import classes of the user's own; its README
            names them.

    Raises:
        PlanError: the plan and the model, or the ranks, do not belong together, or modules were
            frozen in eval, or no longer, since; on every rank, before anything is sent.
    """
    return connect(
        plan,
        model,
        loss_fn=loss_fn,
        runtime=runtime,
        n_microbatches=n_microbatches,
        schedule=schedule,
        allow_imports=allow_imports,
    )
