"""Modules that cannot be traced, run as they are, with cuts around them."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import stagecut
from stagecut.frontend import trace
from stagecut.ir.errors import InfeasibleError, TraceError, UnsupportedError
from tests.codegen.running import assert_trains_alike, mean_square, pipe_of, sources
from tests.frontend.leaving import assert_left_as_it_was, fingerprint

X = {"x": torch.randn(4, 6)}


class Gate(nn.Module):
    """Branches on data: what a trace cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        h = self.norm(self.a(x))
        if h.sum() > 0:
            h = h * 2
        return x + torch.tanh(h) * scale


class Pair(nn.Module):
    """Returns two tensors, takes a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, both: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        left, right = both
        h = self.a(left + right)
        return (h, h.repeat(2, 1)) if bool(h.isfinite().all()) else (h, right)


class Wraps(nn.Module):
    """Its inner module takes and returns what one op cannot; the outer one can be one op."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            h = self.a(batch["x"])
            return {"h": h * 2 if h.sum() > 0 else h}

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner({"x": x})["h"]


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(Gate() for _ in range(3))
        self.pair, self.after, self.wraps = Pair(), nn.Linear(3, 6), Wraps()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.before(x))
        for block in self.blocks:
            x = block(x, scale=0.5)
        left, right = self.pair((x, x * 2))
        return self.wraps(torch.tanh(self.after(left + right[: x.shape[0]])))


@pytest.mark.parametrize("n_stages", [1, 2, 3, 4])
def test_the_rest_is_traced_and_cut_around_them(n_stages: int) -> None:
    model = Blocks()
    pipe = assert_trains_alike(model, X, n_stages, method="uniform")
    assert {n for n, _ in pipe.named_parameters()} == {n for n, _ in model.named_parameters()}
    assert "self.blocks[" in sources(pipe)
    rows = {"x": torch.randn(6, 6)}
    unsplit = copy.deepcopy(model)
    assert_close(pipe.train_step(**rows), mean_square(unsplit(**rows)).detach())


class Writes(nn.Module):
    """Writes what it is given, which the residual around it reads again."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.mul_(0.5)
            h = self.a(x.clone())
            return h * 2 if h.sum() > 0 else h

    def __init__(self) -> None:
        super().__init__()
        self.inners = nn.ModuleList(self.Inner() for _ in range(3))
        self.steps = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.steps[3](x)
        for inner, step in zip(self.inners, self.steps, strict=False):
            x = x * 1.0
            h = inner(x)
            x = torch.tanh(step(h)) + x
        return x


@pytest.mark.parametrize("n_stages", [1, 2, 3])
def test_what_they_write_in_place_is_not_cut_off(n_stages: int) -> None:
    pipe = assert_trains_alike(Writes(), X, n_stages, method="uniform")
    calls = [op for op in pipe.plan.graph.ops if op.target.startswith("module:")]
    assert len(calls) == 3 and all(len(op.effects.mutates) == 1 for op in calls)


class Returns(nn.Module):
    """Returns what it is given, which is written afterwards."""

    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.isfinite().all() else torch.zeros_like(x)

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.steps = self.Inner(), nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sigmoid(self.steps[0](x)) * 1.0
        h = self.inner(x)
        h += 1
        return self.steps[2](torch.tanh(self.steps[1](h.clone()))) + x


@pytest.mark.parametrize("n_stages", [1, 2])
def test_what_they_return_unchanged_is_the_same_tensor(n_stages: int) -> None:
    assert_trains_alike(Returns(), X, n_stages, method="uniform")


def test_the_plan_says_what_and_why() -> None:
    plan = stagecut.partition(Blocks(), 2, example_kwargs=X)
    assert plan.data.frontend.startswith("torch.export around 5 modules that run as they are")
    assert "if h.sum() > 0" in plan.data.frontend and "test_opaque.py:" in plan.data.frontend
    targets = [op.target for op in plan.data.graph.ops if op.target.startswith("module:")]
    assert targets == [
        "module:blocks.0", "module:blocks.1", "module:blocks.2", "module:pair", "module:wraps"
    ]  # fmt: skip


def test_where_no_cut_is_left_the_error_names_them() -> None:
    model = nn.Sequential(Gate(), Gate())
    with pytest.raises(InfeasibleError, match=r"0, 1 cannot be cut inside.*if h.sum\(\) > 0"):
        stagecut.partition(model, 3, (X["x"],))


def test_eval_uses_the_modules_in_eval() -> None:
    model = Blocks()
    pipe = pipe_of(model, X)
    pipe.eval()
    assert_close(pipe(**X), copy.deepcopy(model).eval()(**X))


def test_nothing_is_left_on_the_model() -> None:
    assert_left_as_it_was(Blocks(), X)


def test_on_the_meta_device_the_first_error_is_raised() -> None:
    with torch.device("meta"):
        model = Blocks()
    with pytest.raises(TraceError, match=r"test_opaque.py:\d+, in forward\n\s+if h.sum"):
        trace(model, (), X)


def test_export_alone_refuses_them() -> None:
    with pytest.raises(TraceError, match=r"Blocks cannot be traced.*\n  at .*test_opaque.py:\d+"):
        trace(Blocks(), (), X, frontend="export")


def test_it_is_not_exported(tmp_path: Path) -> None:
    model = Blocks()
    plan = stagecut.partition(model, 2, example_kwargs=X)
    with pytest.raises(UnsupportedError, match=r"run them\s+with pipeline\(plan, model\)|Run them"):
        plan.export(tmp_path / "stages", model)


def test_what_we_use_of_torchs_custom_ops_is_there() -> None:
    from stagecut.frontend.opaque import TARGET

    assert str(torch.ops.stagecut.module.default) == TARGET


class Resets(nn.Module):
    """Sets a state of a module inside that cannot be traced: only together are they one op."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 6)
            self.state: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.tanh(self.a(x)) + (0 if self.state is None else self.state.sum())
            self.state = h
            return h * 2 if h.sum() > 0 else h

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inner.state = None
        return self.inner(x)


def test_a_state_that_other_code_resets_stays_with_that_code() -> None:
    model = nn.Sequential(nn.Linear(6, 6), Resets(), nn.Linear(6, 6))
    unsplit = copy.deepcopy(model)
    pipe = pipe_of(model, {"input": X["x"][:2]}, 2, n_microbatches=2)
    assert [op.target for op in pipe.plan.graph.ops if ":" in op.target] == ["module:1"]
    want = sum(mean_square(unsplit(part)) / 2 for part in X["x"].chunk(2))
    for _ in range(2):
        assert_close(pipe.train_step(X["x"]), want.detach())


class Masked(nn.Module):
    """Cannot be traced; takes a mask that fits what it makes, or none."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.a, self.wide = nn.Linear(6, wide), nn.Linear(wide, 6)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        h = torch.tanh(self.a(x))
        h = h if mask is None else h + mask
        return self.wide(h if h.sum() > 0 else -h)


class MasksInTraces(nn.Module):
    """Makes a mask while it is traced alone, as transformers does where nothing is masked."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(6, 6), Masked(wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros_like(x) if torch.compiler.is_exporting() else None
        return self.inner(self.first(x), mask=mask)


@pytest.mark.parametrize("frontend", ["auto", "symbolic"])
def test_a_module_that_fails_on_what_the_trace_alone_gives_it_is_refused(frontend: str) -> None:
    model = MasksInTraces(wide=4)
    model(**X)
    before = fingerprint(model)
    with pytest.raises(TraceError, match=r"inner cannot be traced, and it cannot run") as told:
        trace(model, (), X, frontend=frontend)
    assert "mask is a tensor [4, 6], and in a run of the example no tensor" in str(told.value)
    assert "The size of tensor a (4) must match" in str(told.value)
    assert fingerprint(model) == before


def test_a_module_that_takes_what_the_trace_alone_gives_it_is_not() -> None:
    model = nn.Sequential(MasksInTraces(wide=6), nn.Linear(6, 6))
    assert trace(model, (X["x"],)).means.opaque == ("0.inner",)
    assert_trains_alike(model, {"input": X["x"]}, 2)
