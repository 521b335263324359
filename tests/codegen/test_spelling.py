"""How calls are written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from stagecut.codegen.spelling import call
from tests.codegen.running import assert_trains_alike, sources


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "written"),
    [
        ("aten.add.Tensor", ["a", "b"], [], "a + b"),
        ("aten.add.Tensor", ["a", "b"], [("alpha", "2")], "aten.add.Tensor(a, b, alpha=2)"),
        ("aten.mul.Tensor", ["a", "2 if self.training else 1"], [],
         "a * (2 if self.training else 1)"),
        ("aten.instance_norm.default",
         ["a", "w", "b", "None", "None", "True", "0.1", "1e-05", "False"], [],
         "F.instance_norm(a, None, None, w, b, True, 0.1, 1e-05)"),
        # The last one froze torch.backends.cudnn.enabled, which F.batch_norm reads when it runs.
        ("aten.batch_norm.default",
         ["a", "w", "b", "m", "v", "self.training", "0.1", "1e-05", "False"], [],
         "F.batch_norm(a, m, v, w, b, self.training, 0.1, 1e-05)"),
        ("aten.view.default", ["a", "[2, s0]"], [], "a.view(2, s0)"),
        ("aten.view.default", ["a", "[]"], [], "a.view([])"),
        ("aten.linear.default", ["a", "self.w"], [], "F.linear(a, self.w)"),
        ("aten.embedding.default", ["self.w", "ids"], [], "F.embedding(ids, self.w)"),
        ("aten.add_.Tensor", ["self.steps", "1"], [], "self.steps.add_(1)"),
        ("operator.floordiv", ["s0", "2"], [], "s0 // 2"),
        ("math.floor", ["x"], [], "math.floor(x)"),
        ("builtins.max", ["a", "b"], [], "max(a, b)"),
        ("torchvision.nms.default", ["a", "b"], [], "torch.ops.torchvision.nms.default(a, b)"),
        ("aten.unbind.int", ["a"], [], "aten.unbind.int(a)"),
    ],
)  # fmt: skip
def test_calls(target: str, args: list[str], kwargs: list[tuple[str, str]], written: str) -> None:
    assert call(target, args, kwargs) == written


@torch.library.custom_op("stagecut_tests::triple", mutates_args=())
def _triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


_triple.register_fake(lambda x: torch.empty_like(x))
_triple.register_autograd(lambda ctx, gradient: gradient * 3)


def test_operators_of_other_libraries() -> None:
    class Tripled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return self.b(torch.tanh(torch.ops.stagecut_tests.triple(self.a(x))))

    pipe = assert_trains_alike(Tripled(), {"x": torch.randn(3, 4)}, 2)
    assert "torch.ops.stagecut_tests.triple.default(" in sources(pipe)
