"""Planned recomputation: trains the same, takes the memory predicted, fits where asked to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import stagecut
from stagecut.ir.errors import ArgumentError, InfeasibleError
from stagecut.ir.graph import Recompute
from stagecut.ir.plan import Plan
from stagecut.passes.regions import group_of
from tests.frontend.test_checkpoints import Deep
from tests.passes.models import ConvNet
from tests.passes.test_peak import MICROBATCHES, ROWS, WithLoss, _hf, predicted_peaks
from tests.support.equality import (
    Case,
    assert_trained_alike,
    train_pipeline,
    train_unsplit,
)
from tests.support.stage_memory import measured_peaks

OPTIONS: dict[str, Any] = {"cluster": "cpu", "n_microbatches": MICROBATCHES}


def deep(dropout: float = 0.0, saves: bool = False) -> nn.Module:
    model = Deep(saves)
    for block in model.blocks:
        block.dropout.p = dropout
    return model


def case_of(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    if name in ("gpt2", "vit"):
        model, inputs = _hf(name)
        return model.train(), inputs
    return WithLoss(deep()), {"x": torch.randn(64 * ROWS, 16)}


def plan_of(
    model: nn.Module, inputs: dict[str, torch.Tensor], n: int = 2, **options: Any
) -> stagecut.Plan:
    rows = len(next(iter(inputs.values()))) // MICROBATCHES
    example = {key: value[:rows] for key, value in inputs.items()}
    return stagecut.partition(model, n, example_kwargs=example, **{**OPTIONS, **options})


def n_recomputed(plan: Plan) -> int:
    return sum(any(isinstance(c, Recompute) for c in op.context) for op in plan.graph.ops)


@pytest.mark.parametrize("name", ["deep", "gpt2", "vit"])
def test_full_takes_the_memory_predicted(name: str) -> None:
    model, inputs = case_of(name)
    plan = plan_of(model, inputs, recompute="full", method="uniform").data
    assert n_recomputed(plan)
    for schedule in ("gpipe", "1f1b"):
        measured = measured_peaks(plan, model, list(inputs.values()), MICROBATCHES, schedule)
        assert predicted_peaks(plan, schedule) == pytest.approx(measured, rel=0.05), schedule


def test_the_users_own_regions_take_the_memory_predicted() -> None:
    model, x = WithLoss(deep(saves=True)), torch.randn(64 * ROWS, 16)
    plan = plan_of(model, {"x": x}, method="uniform").data
    measured = measured_peaks(plan, model, [x], MICROBATCHES, "gpipe")
    assert predicted_peaks(plan, "gpipe") == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("name", ["deep", "gpt2"])
def test_a_limit_that_is_too_low_without_is_met(name: str) -> None:
    model, inputs = case_of(name)
    options = {"schedule": "gpipe", "optimizer": "adamw"}
    without = plan_of(model, inputs, recompute="never", **options)
    full = plan_of(model, inputs, recompute="full", **options)
    peaks = [max(s.memory.total for s in plan.stages) for plan in (without, full)]
    limit = 0.6 * peaks[0] + 0.4 * peaks[1]
    with pytest.raises(InfeasibleError):
        plan_of(model, inputs, recompute="never", memory_limit=limit, **options)
    plan = plan_of(model, inputs, memory_limit=limit, **options)
    assert plan.fits
    assert any("recomputes" in note for note in plan.data.notes)
    assert 0 < n_recomputed(plan.data) < n_recomputed(full.data)
    batch = list(inputs.values())
    assert max(measured_peaks(plan.data, model, batch, MICROBATCHES, "gpipe")) <= limit


def test_a_cut_that_fits_gives_way_to_a_faster_one_that_recomputes() -> None:
    model, inputs = case_of("deep")
    roomy = plan_of(model, inputs, recompute="never", optimizer="adamw").data
    limit = 0.9 * max(stage.memory.total for stage in roomy.stages)
    options = {"optimizer": "adamw", "memory_limit": limit}
    plain = plan_of(model, inputs, recompute="never", **options)
    plan = plan_of(model, inputs, **options)
    assert plain.fits and plan.fits and n_recomputed(plan.data)
    assert plan.data.bottleneck_seconds < 0.9 * plain.data.bottleneck_seconds
    shown = [trial.bottleneck_seconds for trial in plan.data.trials]
    for made in (plain, plan):
        assert pytest.approx(made.data.bottleneck_seconds) in shown
    assert any('recompute="never" takes that' in note for note in plan.data.notes)
    assert (
        max(measured_peaks(plan.data, model, list(inputs.values()), MICROBATCHES, "1f1b")) <= limit
    )
    asked = plan_of(model, inputs, method="dp", **options).data
    assert n_recomputed(asked) == 0  # who names a method gets its cut where that fits


@pytest.mark.parametrize("share", [0.98, 0.9, 0.8])
def test_limits_hold_at_the_peak_without_recomputing(share: float) -> None:
    """With transfers' buffers and all: another cut that fits, or an error, never one over it."""
    model, inputs = case_of("deep")
    options = {"recompute": "never", "optimizer": "adamw"}
    roomy = plan_of(model, inputs, **options).data
    limit = share * max(stage.memory.total for stage in roomy.stages)
    if share == 0.8:
        with pytest.raises(
            InfeasibleError, match=r"no cut found fits at its peak.*memory_limit by"
        ):
            plan_of(model, inputs, memory_limit=limit, **options)
        return
    plan = plan_of(model, inputs, memory_limit=limit, **options)
    assert plan.fits
    assert plan.data.bottleneck_seconds > roomy.bottleneck_seconds
    batch = list(inputs.values())
    assert max(measured_peaks(plan.data, model, batch, MICROBATCHES, "1f1b")) <= limit


def test_auto_recomputes_nothing_where_memory_suffices() -> None:
    model, inputs = case_of("deep")
    assert n_recomputed(plan_of(model, inputs).data) == 0


def test_backwards_take_the_forward_again() -> None:
    model, inputs = case_of("deep")
    never, full = (
        plan_of(model, inputs, recompute=how, method="uniform") for how in ("never", "full")
    )
    for before, after in zip(never.stages, full.stages, strict=True):
        extra = after.backward_seconds - before.backward_seconds
        assert 0.5 * before.forward_seconds < extra <= before.forward_seconds
        assert after.forward_seconds == before.forward_seconds


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero_bubble"])
@pytest.mark.parametrize("name", ["deep", "gpt2"])
def test_trains_as_the_unsplit_model(name: str, schedule: str) -> None:
    model, inputs = case_of(name)
    own = name == "deep"
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    case = Case(model, (), inputs, (lambda out: out) if own else None)
    expected = train_unsplit(case, MICROBATCHES, 3)
    plan = plan_of(model, inputs, recompute="full", schedule=schedule)
    pipe = stagecut.pipeline(plan, model, loss_fn=case.loss, runtime="local")
    assert "checkpoint(recompute_" in pipe.program.stages[0].source
    assert_trained_alike(train_pipeline(case, pipe, 3), expected)


def test_dropout_draws_the_same_again() -> None:
    gradients = []
    x = torch.randn(64, 16)
    for how in ("never", "full"):
        torch.manual_seed(0)
        model = WithLoss(deep(dropout=0.5))
        plan = plan_of(model, {"x": x}, recompute=how, schedule="gpipe")
        pipe = stagecut.pipeline(plan, model, loss_fn=lambda out: out, runtime="local")
        torch.manual_seed(1)
        pipe.train_step(x=x)
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*gradients)


def test_never_around_what_writes_or_is_checkpointed_already() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(ConvNet() for _ in range(3))
            self.deep = deep(saves=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = sum(part(x) for part in self.parts)
            return self.deep(made.repeat(1, 4)).square().mean()

    plan = plan_of(Mixed(), {"x": torch.randn(ROWS, 3, 16, 16)}, recompute="full").data
    ops = plan.graph.ops
    writing = [op for op in ops if op.effects.mutates]
    assert writing
    assert all(group_of(op) is None for op in writing)
    own = {group_of(op) for op in ops if op.scope.startswith("deep")}
    ours = {group_of(op) for op in ops if op.scope.startswith("parts")}
    assert own == set(range(6))
    assert ours - {None}
    assert own.isdisjoint(ours)
    assert all(sum(isinstance(c, Recompute) for c in op.context) <= 1 for op in ops)


def test_an_unknown_choice() -> None:
    model, inputs = case_of("deep")
    with pytest.raises(ArgumentError, match="never, full or auto"):
        plan_of(model, inputs, recompute="some")
