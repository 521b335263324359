"""What the user reads when a model cannot be traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import stagecut
from stagecut.frontend import trace
from stagecut.ir.errors import ArgumentError, StagecutError, TraceError

X = torch.randn(4, 6)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        if h.sum() > 0:
            h = h * 2
        return h


class Loops(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(int(x.abs().sum())):
            x = x + 1
        return x


class Numpy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_numpy(x.detach().numpy())


class Raises(nn.Module):
    """In a module inside, which is no reason to set that module aside."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.ndim != 3:
                raise ValueError("x has to have three dimensions")
            return self.a(x)

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Embeds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.a = nn.Embedding(4, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(self.embed(x))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x)


@pytest.mark.parametrize("kind", [Branches, Loops, Numpy])
def test_errors_name_the_users_line_and_the_remedy(
    kind: type[nn.Module], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TraceError) as caught:
        trace(kind(), (X,), frontend="symbolic")
    text = str(caught.value)
    assert len(text.splitlines()) < 15
    assert f"{kind.__name__} cannot be traced" in text
    assert "tests/frontend/test_errors.py:" in text and ", in forward" in text
    assert caught.value.__cause__ is not None
    out, err = capfd.readouterr()
    assert not out and not err


WRONG: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, str]] = {
    "shape": (Branches, torch.randn(4, 7), r"Branches fails on .*cannot be multiplied \(4x7 and"),
    "one row": (Branches, torch.randn(1, 7), r"The example was x float32\[1, 7\]"),
    "kind": (Embeds, X, r"Embeds fails on .*Long, Int"),
    "dtype": (
        lambda: nn.Sequential(Plain()),
        X.long(),
        r"test_errors.py:\d+: linear of int64 and float32",
    ),
    "precision": (Plain, X.double(), r"test_errors.py:\d+: linear of float64 and float32"),
    "its own": (Raises, X, r"Raises fails on .*ValueError: x has to have three dimensions"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_example_is_told_in_a_few_lines(name: str) -> None:
    kind, x, pattern = WRONG[name]
    with pytest.raises(TraceError, match=pattern) as caught:
        stagecut.partition(kind(), 2, (x,))
    text = str(caught.value)
    assert len(text.splitlines()) < 15 and "tests/frontend/test_errors.py:" in text
    assert "give one micro-batch" in text.lower() or "give an example" in text


def test_a_wrong_example_on_the_meta_device_too() -> None:
    with torch.device("meta"):
        model = Embeds()
    with pytest.raises(TraceError, match=r"Embeds cannot be traced: .*Long, Int[\s\S]*test_errors"):
        stagecut.partition(model, 2, (X.to("meta"),))


def test_autocast_takes_operands_of_any_precision() -> None:
    class Casts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.a(x.bfloat16())

    assert trace(Casts(), (X,)).graph.ops


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "no example": (lambda: stagecut.partition(Loops(), 2), r"example_args=\(x,\)"),
    "too many": (lambda: trace(Branches(), (X, X)), r"does not fit Branches.forward: too many"),
    "unknown": (lambda: trace(Branches(), (X,), {"y": X}), r"unexpected keyword argument 'y'"),
    "no tensor": (lambda: trace(Branches(), (3,)), r"no tensor with a batch dimension"),
    "no rows": (lambda: trace(Branches(), (X[:0],)), r"the example's batch is empty"),
    "split unknown": (
        lambda: trace(Branches(), (X,), split={"mask": None}), r"split names mask.*it has x",
    ),
    "lazy": (
        lambda: trace(nn.Sequential(nn.LazyLinear(6)), (X,)), r"0.weight, 0.bias of a lazy module",
    ),
    "no such frontend": (
        lambda: trace(Branches(), (X,), frontend="fx"), r"'fx'; choose auto, export, symbolic",
    ),
    "an array": (
        lambda: trace(Branches(), (np.zeros((40, 6)),)), r"x is ndarray \(40, 6\)\n.*from_n",
    ),
    "split elsewhere": (lambda: trace(Branches(), (X,), split={"x": 1}), r"along dimension 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_examples_that_do_not_fit(name: str) -> None:
    call, pattern = CALLS[name]
    with pytest.raises(ArgumentError, match=pattern):
        call()


def test_every_error_is_ours() -> None:
    assert issubclass(TraceError, StagecutError) and issubclass(ArgumentError, ValueError)


def test_a_control_flow_operator_is_refused_by_name() -> None:
    class Cond(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    with pytest.raises(TraceError, match=r"test_errors.py:\d+, in forward[^$]*torch.where"):
        trace(Cond(), (X,), frontend="symbolic")
