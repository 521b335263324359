"""What a trace shows nothing of is refused in the model's own forward and kept in its modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stagecut.frontend import trace
from stagecut.ir.errors import TraceError
from tests.codegen.running import assert_trains_alike

X = {"x": torch.randn(4, 6)}


class Infers(nn.Module):
    """A gate in inference mode."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            gate = torch.sigmoid(self.a(x))
        return self.b(x) + gate


class Assigns(nn.Module):
    """A running mean that is assigned to `.data`."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.a(x))
        self.mean.data = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return h + self.mean


LOST = {"inference": (Infers, "torch.inference_mode"), "data": (Assigns, "the assignment to .data")}


@pytest.mark.parametrize("name", LOST)
def test_in_the_models_own_forward_it_is_refused_with_its_line(name: str) -> None:
    kind, what = LOST[name]
    with pytest.raises(TraceError, match=rf"test_lost.py:\d+: a trace would lose {what}.*own, wh"):
        trace(kind(), (), X)


@pytest.mark.parametrize("n_stages", [1, 2])
@pytest.mark.parametrize("name", LOST)
def test_in_a_module_it_is_kept(name: str, n_stages: int) -> None:
    model = nn.Sequential(nn.Linear(6, 6), LOST[name][0](), nn.Linear(6, 6))
    assert_trains_alike(model, {"input": X["x"]}, n_stages)


def test_without_gradients_inference_mode_changes_nothing() -> None:
    assert not any(":" in op.target for op in trace(Infers(), (), X, training=False).graph.ops)
