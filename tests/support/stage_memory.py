"""Measures the memory of each stage of a plan through whole training steps on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from stagecut.ir.plan import Plan
from stagecut.ir.schedule import Compute, Phase
from stagecut.ir.types import TensorType
from stagecut.prediction import actions_of, program_of
from stagecut.runtime.microbatches import MicroBatch, split
from stagecut.runtime.stage import StageRunner
from stagecut.runtime.worker import stage_runners
from tests.support.peak import PeakTracker

WARM_UP_STEPS = 1
"""After the first step the optimizer has its state."""


def measured_peaks(
    plan: Plan,
    model: nn.Module,
    inputs: Sequence[torch.Tensor],
    n_microbatches: int,
    schedule: str,
) -> list[int]:
    """For each stage, the peak bytes of a step of AdamW in steady state, run by the runtime's own
    stage runner in the schedule's own order, with what it receives made up."""
    program = program_of(plan)
    edges = program.edges
    actions = actions_of(plan, edges, n_microbatches, schedule)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    runners = stage_runners(program, tensors, range(plan.n_stages))
    batches = split(plan.graph, inputs, None, n_microbatches)
    peaks = []
    for index, runner in runners.items():
        mine = [
            action
            for action in actions.devices[plan.device_of_stage[index]]
            if isinstance(action, Compute) and action.stage == index
        ]
        parameters = [p for p in runner.module.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(parameters, foreach=False) if parameters else None
        for _ in range(WARM_UP_STEPS + 1):
            peak = _step(runner, optimizer, mine, batches, inputs)
        peaks.append(peak)
    return peaks


def _step(
    runner: StageRunner,
    optimizer: torch.optim.Optimizer | None,
    actions: Sequence[Compute],
    batches: Sequence[MicroBatch],
    inputs: Sequence[torch.Tensor],
) -> int:
    with PeakTracker(ignored=inputs) as tracker:
        tracker.hold(runner.module.parameters())
        tracker.hold(runner.module.buffers())
        states = optimizer.state.values() if optimizer else ()
        tracker.hold(t for state in states for key, t in state.items() if key != "step")
        for action in actions:
            if action.phase is Phase.FORWARD:
                _forward(runner, batches[action.microbatch])
            else:
                _backward(runner, action.microbatch)
        if optimizer:
            optimizer.step()
            optimizer.zero_grad()
    return tracker.peak


def _forward(runner: StageRunner, batch: MicroBatch) -> None:
    received = {
        port.name: torch.zeros(
            port.type.sizes(batch.symbols), dtype=getattr(torch, port.type.dtype)
        )
        for port in runner.program.inputs
        if port.stage not in (None, runner.program.index) and isinstance(port.type, TensorType)
    }
    loss = (lambda outputs, _: outputs[0]) if runner.outputs is not None else None
    runner.forward(batch, received, seed=0, training=True, loss=loss)


def _backward(runner: StageRunner, index: int) -> None:
    flying = runner.flying[index]
    outputs = {port.name for port in runner.output_ports} if flying.loss is not None else set()
    gradients = {
        name: torch.zeros_like(result)
        for name, result in flying.results.items()
        if name not in outputs
    }
    runner.backward(index, gradients)
