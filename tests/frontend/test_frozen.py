"""What a trace would freeze without a word: Python's own state and its random draws."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import stagecut
from stagecut.frontend import trace
from stagecut.ir.errors import ArgumentError
from tests.cases.models import Chain
from tests.codegen.running import pipe_of

X = torch.randn(4, 8)


class Keeps(nn.Module):
    """Counts its calls, caches a table, keeps its last output and a log."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.calls = Chain(4), 0
        self.log: list[Any] = []
        self.seen: dict[int, Any] = {0: "first"}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if not hasattr(self, "table"):
            self.table = torch.arange(8).float()
        self.last = self.body(x) + self.table
        self.log.append(self.last)
        self.seen[self.calls] = self.last
        return self.last if self.calls < 3 else self.last * 2


def test_forward_leaves_nothing_fake_on_the_model() -> None:
    model = Keeps()
    plan = stagecut.partition(model, 2, (X,))
    assert (model.calls, model.log, model.seen) == (0, [], {0: "first"})
    assert not hasattr(model, "last") and not hasattr(model, "table")
    assert not model._forward_hooks
    pipe = stagecut.pipeline(plan, model, loss_fn=torch.mean)
    assert_close(pipe.train_step(X), model(X).mean())


def test_neither_do_modules_that_run_as_they_are() -> None:
    class Branches(Keeps):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = super().forward(x)
            return x * 2 if x.sum() > 0 else x

    model = nn.Sequential(nn.Linear(8, 8), Branches(), nn.Linear(8, 8))
    plan = stagecut.partition(model, 2, (X,))
    assert plan.data.frontend.startswith("torch.export around 1 module that runs as it is")
    assert model[1].calls == 0 and not hasattr(model[1], "last") and not hasattr(model[1], "table")
    pipe = stagecut.pipeline(plan, model, loss_fn=torch.mean, n_microbatches=1)
    pipe.train_step(X)
    assert model[1].calls == 1 and model[1].last.shape == X.shape


def test_what_forward_changes_is_reported() -> None:
    notes = trace(Keeps(), (X,)).graph.notes
    assert sum("forward changes calls (0, then 1)" in note for note in notes) == 1
    assert any("assigns the tensor last" in note for note in notes)


class Skips(nn.Module):
    """A layer that Python's generator leaves out now and then."""

    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.a, self.draw = nn.Linear(8, 8), draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.training and self.draw() < 0.5 else x + torch.tanh(self.a(x))


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["python", "numpy"])
def test_a_module_that_draws_in_python_runs_as_it_is(draw: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 8), *(Skips(draw) for _ in range(4)), nn.Linear(8, 8))
    random.seed(3)
    np.random.seed(3)
    states = random.getstate(), np.random.get_state()[1].copy()
    pipe = pipe_of(model, {"input": X}, 3)
    assert states[0] == random.getstate() and (states[1] == np.random.get_state()[1]).all()
    assert "draws from Python's or numpy's generator" in pipe.plan.frontend
    assert sum(op.target.startswith("module:") for op in pipe.plan.graph.ops) == 4
    got = torch.stack([pipe.train_step(X) for _ in range(6)])
    random.seed(3)
    np.random.seed(3)
    want = torch.stack([model(X).square().mean() for _ in range(6)])
    assert_close(got, want)
    assert len(want.unique()) > 2
    assert_close(pipe.eval()(X), model.eval()(X))


def test_where_the_model_itself_draws_the_plan_says_so() -> None:
    class Draws(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Chain(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x) * random.random()

    notes = trace(Draws(), (X,)).graph.notes
    assert any("every step keeps what the trace drew" in note for note in notes)
    alone = trace(nn.Sequential(Skips(random.random)), (X,), frontend="export")
    assert any("every step keeps what the trace drew" in note for note in alone.graph.notes)


class Asks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Chain(4)

    def forward(self, x: torch.Tensor, kind: str = "a", last: bool = False) -> torch.Tensor:
        x = self.body(x)
        if not torch.compiler.is_compiling():
            x = x + 0
        return x if kind == "a" or last else -x


def test_python_values_that_a_trace_takes_for_granted_are_reported() -> None:
    notes = trace(Asks(), (X,), {"kind": "b"}).graph.notes
    assert any("traced with kind='b': a step with another value is refused" in n for n in notes)
    assert any("test_frozen.py:" in n and "is being traced" in n for n in notes)
    model = Asks()
    pipe = pipe_of(model, {"x": X, "kind": "b"})
    with pytest.raises(ArgumentError, match="kind is 'a', traced as 'b'"):
        pipe.train_step(x=X, kind="a")


class Trainer:
    """No part of a model: what it asks and sets is its own matter."""

    def run(self) -> bool:
        torch.manual_seed(0)
        return torch.is_grad_enabled()


class Settles(nn.Module):
    """Asks for the mode of autograd, and seeds in several ways."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = Chain(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            x = 2 * x
        torch.manual_seed(1)
        with torch.random.fork_rng():
            torch.random.manual_seed(2)
            x = x + torch.randn_like(x)
        torch.set_rng_state(torch.get_rng_state())
        return self.body(x)


def test_the_mode_of_autograd_and_seeds_that_a_trace_settles_are_reported() -> None:
    first = Settles.forward.__code__.co_firstlineno
    for training, kind in ((True, "training"), (False, "inference")):
        notes = trace(Settles(), (X,), training=training).graph.notes
        (asks,) = (note for note in notes if "whether gradients are recorded" in note)
        assert f"test_frozen.py:{first + 1} " in asks and asks.endswith(kind)
        seeds = [note for note in notes if "seeds a generator" in note]
        for line, seed in zip((3, 5, 7), seeds, strict=True):
            assert f"test_frozen.py:{first + line} " in seed
        assert all("from a torch.Generator in a module of its own" in seed for seed in seeds)


def test_what_modules_settle_that_run_as_they_are_is_not_reported() -> None:
    class Decides(Settles):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                torch.manual_seed(1)
            return x * 2 if x.sum() > 0 else x

    model = nn.Sequential(nn.Linear(8, 8), Decides(), nn.Linear(8, 8))
    traced = trace(model, (X,))
    assert traced.means.opaque == ("1",)
    first = Decides.forward.__code__.co_firstlineno
    told = [n for n in traced.graph.notes if f"test_frozen.py:{first + 1} " in n]
    told += [n for n in traced.graph.notes if f"test_frozen.py:{first + 2} " in n]
    assert not told


def test_modules_that_the_user_compiled_are_traced_into() -> None:
    def build(backend: str | None) -> nn.Module:
        torch.manual_seed(0)
        layers = [nn.Linear(8, 8) for _ in range(3)]
        if backend:
            layers[1].compile(backend=backend)
            layers[2] = torch.compile(layers[2], backend=backend)  # type: ignore[call-overload]
        return nn.Sequential(*layers)

    model = build("eager")
    pipe = pipe_of(model, {"input": X}, 3)
    assert not any(":" in op.target for op in pipe.plan.graph.ops)
    assert_close(pipe.train_step(X), build(None)(X).square().mean().detach())
    assert pipe.state_dict().keys() == model.state_dict().keys()


def test_hooks_that_forward_itself_registers_are_taken_off_again() -> None:
    class Installs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Chain(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not hasattr(self, "installed"):
                self.body.register_forward_hook(lambda module, args, out: out * 2)
                self.installed = True
            return self.body(x)

    model = Installs()
    trace(model, (X,))
    assert not model.body._forward_hooks and not hasattr(model, "installed")
