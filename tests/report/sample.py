"""A small plan with every feature a report shows, with round figures."""

from __future__ import annotations

from dataclasses import replace

from stagecut.ir.device import Cluster, Device, Link
from stagecut.ir.graph import Graph
from stagecut.ir.plan import Plan, StageMemory, StageReport, Transfer
from stagecut.ir.schedule import StageEdge
from stagecut.ir.solution import Trial
from stagecut.ir.timeline import EdgeCost, Reduction, StepCosts, Timeline
from stagecut.partitioner.schedules import expand, make_schedule
from stagecut.partitioner.schedules.simulator import simulate

MIB = 1024.0**2
GIB = 1024.0**3

DEVICE = Device(
    name="A100-80GB", kind="cuda", memory_bytes=80e9, flops_per_second=(("float32", 19.5e12),),
    bytes_per_second=2.0e12, launch_seconds=4e-6, matrix_efficiency=0.6, memory_efficiency=0.8,
    source="made up",
)  # fmt: skip
CLUSTER = Cluster(
    name="two", devices=(DEVICE, DEVICE), devices_per_node=8,
    inside=Link(5e-6, 2e11), between=Link(1e-5, 2e10), assumed=True,
)  # fmt: skip


def _stage(index: int, **changes: object) -> StageReport:
    memory = StageMemory(
        weights=100 * MIB, gradients=100 * MIB, optimizer=200 * MIB, saved_per_microbatch=12 * MIB,
        in_flight=2 - index, boundary=3 * MIB, workspace=1.5 * MIB, limit=8 * GIB, margin=1 * GIB,
    )  # fmt: skip
    crossing = (
        Transfer("add_3", 0, 1, n_bytes=3 * MIB, gradient_bytes=3 * MIB),
        Transfer("mask", 0, 1, n_bytes=512, gradient_bytes=0),
    )
    stage = StageReport(
        index=index, device="A100-80GB", rank=index, modules=("embed", "blocks.0 … blocks.3"),
        ops=("embedding", "linear"), forward_seconds=1.5e-3, backward_seconds=3e-3,
        send_seconds=2e-5, receive_seconds=2e-5, sync_seconds=1e-5, optimizer_seconds=6e-4,
        flops_forward=4.5e10, flops_backward=9e10, memory=memory,
        sends=crossing if index == 0 else (), receives=crossing if index == 1 else (),
    )  # fmt: skip
    return replace(stage, **changes)  # type: ignore[arg-type]


def sample_plan() -> Plan:
    second = _stage(1, modules=("blocks.4", "head"), forward_seconds=1.6e-3, flops_forward=5e10)
    return Plan(
        graph=Graph("TinyGPT", (), (), (), ()), stages_of_ops=(), stages=(_stage(0), second),
        cluster=CLUSTER, device_of_stage=(0, 1), schedule="1f1b", n_microbatches=8,
        optimizer="adamw", method="metis",
        trials=(
            Trial("dp", 4.7e-3, 6.5 * MIB, 0.012),
            Trial("metis", 4.65e-3, 6 * MIB + 512, 0.034, "recursive bisection"),
            Trial("exact", float("inf"), 0.0, 1.0, "node budget spent"),
        ),
        bottleneck_seconds=4.65e-3, lower_bound_seconds=4.6e-3, optimal=False,
        stopped_by_clock=False, step_seconds=4.2e-2, bubble=1 / 9,
        frontend="export", torch_version="2.13.0",
        notes=("A [bracketed] note stays as it is.",),
    )  # fmt: skip


def sample_timeline(schedule: str = "1f1b", n_stages: int = 2, n_microbatches: int = 3) -> Timeline:
    """A simulated step of equal stages: backward takes twice the forward, a transfer 0.1 s."""
    edges = [StageEdge(k, k + 1, schedule != "forward") for k in range(n_stages - 1)]
    made = make_schedule(schedule, n_stages, n_stages, n_microbatches)
    costs = StepCosts(
        forward_seconds=(1.0,) * n_stages, backward_seconds=(2.0,) * n_stages,
        backward_input_seconds=(1.0,) * n_stages, backward_weight_seconds=(1.0,) * n_stages,
        saved_bytes=(MIB,) * n_stages, static_bytes=(3 * MIB,) * n_stages,
        optimizer_seconds=(0.5,) * n_stages,
        edges=tuple(EdgeCost(e.source, e.destination, 0.1, 0.1) for e in edges),
        reductions=(Reduction((0, n_stages - 1), 0.5),),
    )  # fmt: skip
    return simulate(expand(made, edges), costs)
