"""Decisions by data in the model's own forward: kept as the example takes them, and checked."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import stagecut
from stagecut.frontend import trace
from stagecut.ir.errors import RuntimeFailure, TraceError
from tests.codegen.running import assert_trains_alike, mean_square, pipe_of, sources
from tests.frontend.leaving import assert_left_as_it_was

X = {"x": torch.randn(4, 6, generator=torch.Generator().manual_seed(0))}


class Checks(nn.Module):
    """Checks its input, branches, counts and loops, all by values."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.isnan(x).any():
            raise ValueError("not a number")
        for layer in self.layers:
            x = torch.tanh(layer(x))
        if x.abs().max() <= 1:
            x = self.norm(x) * 2
        for _ in range(int(x.isfinite().all())):
            x = x + 1
        return x * 0.5 if torch.isfinite(x).all().item() else x


class Gate(nn.Module):
    """A module that branches, which can decide for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        return x + (h * 2 if h.sum() > 0 else h)


class Mixed(nn.Module):
    """The model decides, and so do its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gates = nn.Linear(6, 6), nn.ModuleList(Gate() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        assert torch.isfinite(x).all()
        for gate in self.gates:
            x = gate(x)
        return x


class Torn(nn.Module):
    """Its decision is another one for nearly every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) + float(x.mean()) if x.mean().item() > -100 else self.a(x)


@pytest.mark.parametrize("n_stages", [1, 2, 3])
def test_trains_as_the_unsplit_model(n_stages: int) -> None:
    model = Checks()
    pipe = assert_trains_alike(model, X, n_stages, method="uniform")
    assert "expect(" in sources(pipe)
    rows = {"x": torch.randn(6, 6)}
    assert_close(pipe.train_step(**rows), mean_square(copy.deepcopy(model)(**rows)).detach())


def test_eval_takes_them_too() -> None:
    model = Checks()
    pipe = pipe_of(model, X)
    assert_close(pipe.eval()(**X), copy.deepcopy(model).eval()(**X))


def test_a_step_that_decides_otherwise_raises_and_says_where() -> None:
    pipe = pipe_of(Checks(), X)
    with pytest.raises(
        RuntimeFailure, match=r"test_decisions.py:\d+ decides by data: it was False"
    ):
        pipe.train_step(x=torch.full((4, 6), float("nan")))


def test_the_plan_says_which_way_was_taken_and_why() -> None:
    plan = stagecut.partition(Checks(), 2, example_kwargs=X)
    assert plan.data.frontend.startswith(
        "torch.export with 4 decisions by data as the example decides"
    )
    assert "Checks cannot be traced: a Python decision depends on the values" in plan.data.frontend
    shown = str(plan)
    assert "`if torch.isnan(x).any():` (false in the example)" in " ".join(shown.split())


@pytest.mark.parametrize("n_stages", [1, 2, 4])
def test_blocks_still_decide_for_themselves(n_stages: int) -> None:
    pipe = assert_trains_alike(Mixed(), X, n_stages, method="uniform")
    targets = [op.target for op in pipe.plan.graph.ops]
    assert [t for t in targets if ":" in t] == [f"module:gates.{i}" for i in range(3)]
    assert targets.count("stagecut.expect.default") == 1


def test_asked_for_the_blocks_decisions_are_recorded_instead() -> None:
    model = Mixed()
    for gate in model.gates:
        nn.init.constant_(gate.a.bias, 10.0)
    traced = trace(model, (), X, frontend="recorded")
    targets = [op.target for op in traced.graph.ops]
    assert not any(":" in t for t in targets) and targets.count("stagecut.expect.default") == 4


def test_what_every_batch_decides_anew_is_refused() -> None:
    with pytest.raises(TraceError, match=r"test_decisions.py:\d+ decides by data.*neither can"):
        trace(Torn(), (), X)
    pipe = pipe_of(Torn(), X, frontend="recorded")
    pipe.train_step(**X)
    with pytest.raises(RuntimeFailure, match=r"test_decisions.py:\d+ decides by data: it was"):
        pipe.train_step(x=X["x"] + 1)


def test_a_branch_that_goes_both_ways_is_refused_unless_asked_for() -> None:
    class Signed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x) if x.sum() > 0 else self.a(-x)

    inputs = {"x": torch.ones(4, 6)}
    with pytest.raises(TraceError, match=r"with its numbers negated.*frontend=.recorded"):
        trace(Signed(), (), inputs)
    assert "1 decision by data" in trace(Signed(), (), inputs, frontend="recorded").frontend


def test_a_trace_that_gives_other_outputs_is_refused() -> None:
    count = itertools.count(1)

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert torch.isfinite(x).all()
            return self.a(x) * next(count)

    with pytest.raises(TraceError, match="gives other outputs than the model"):
        trace(Hidden(), (), X)


def test_a_model_without_decisions_is_traced_as_ever() -> None:
    assert trace(nn.Linear(6, 6), (X["x"],), frontend="recorded").frontend == "torch.export"


def test_nothing_is_left_on_the_model() -> None:
    assert_left_as_it_was(Checks(), X)
    assert_left_as_it_was(Mixed(), X)


def test_neither_by_modules_that_run_in_the_comparison() -> None:
    class Counts(Gate):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.calls = nn.BatchNorm1d(6), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(self.norm(x))

    model = Mixed()
    model.gates = nn.ModuleList(Counts() for _ in range(3))
    assert_left_as_it_was(model, X)
    assert [gate.calls for gate in model.gates] == [0, 0, 0]


def test_on_the_meta_device_the_first_error_is_raised() -> None:
    with torch.device("meta"):
        model = Checks()
    with pytest.raises(TraceError, match=r"test_decisions.py:\d+, in forward\n\s+if torch.isnan"):
        trace(model, (), X)


def test_what_we_use_of_torchs_custom_ops_is_there() -> None:
    from stagecut.frontend.decisions import TARGET

    assert str(torch.ops.stagecut.expect.default) == TARGET


class Backbone(nn.Module):
    """Holds the blocks, and decides in its own forward."""

    def __init__(self, torn: bool) -> None:
        super().__init__()
        self.blocks, self.torn = nn.ModuleList(nn.Linear(6, 6) for _ in range(5)), torn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x.sum() > 0) if self.torn else torch.isnan(x).any():
            x = x * 2
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x


@pytest.mark.parametrize("torn", [False, True])
def test_a_backbone_is_cut_inside_where_its_decisions_hold(torn: bool) -> None:
    model = nn.Sequential(Backbone(torn), nn.Linear(6, 2))
    pipe = assert_trains_alike(model, {"input": torch.rand(4, 6)}, 2, method="uniform")
    targets = [op.target for op in pipe.plan.graph.ops]
    assert ("module:0" in targets) is torn
    assert targets.count("stagecut.expect.default") == (not torn)
    if not torn:
        assert_trains_alike(nn.Sequential(Backbone(torn), nn.Linear(6, 2)), {"input": X["x"]}, 4)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_layers_left_out_at_random_are_not_frozen(rate: float) -> None:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                if torch.rand([]) < rate:
                    continue
                x = torch.tanh(layer(x))
            return x

    traced = trace(nn.Sequential(nn.Linear(6, 6), Drops()), (X["x"],))
    targets = [op.target for op in traced.graph.ops]
    assert ("module:1" in targets) is (rate > 0)
    assert targets.count("stagecut.expect.default") == (0 if rate else 6)
