"""What the user reads when a model cannot be traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the user's own fault")


@pytest.mark.parametrize("kind", [Branches, Loops, Numpy, Raises])
def test_errors_name_the_users_line_and_the_remedy(
    kind: type[nn.Module], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TraceError) as caught:
        trace(kind(), (X,))
    text = str(caught.value)
    assert len(text.splitlines()) < 15
    assert f"{kind.__name__} cannot be traced" in text
    assert "tests/frontend/test_errors.py:" in text and ", in forward" in text
    assert caught.value.__cause__ is not None
    out, err = capfd.readouterr()
    assert not out and not err


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "no example": (lambda: stagecut.partition(Loops(), 2), r"example_args=\(x,\)"),
    "too many": (lambda: trace(Branches(), (X, X)), r"does not fit Branches.forward: too many"),
    "unknown": (lambda: trace(Branches(), (X,), {"y": X}), r"unexpected keyword argument 'y'"),
    "no tensor": (lambda: trace(Branches(), (3,)), r"no tensor with a batch dimension"),
    "no rows": (lambda: trace(Branches(), (X[:0],)), r"the example's batch is empty"),
    "split unknown": (
        lambda: trace(Branches(), (X,), split={"mask": None}), r"split names mask.*it has x",
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
        trace(Cond(), (X,))
