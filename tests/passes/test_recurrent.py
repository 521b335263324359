"""The LSTM workspace formula against oneDNN's kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from stagecut.passes.recurrent import lstm_workspace_bytes


class _Workspace(TorchDispatchMode):
    n_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._schema.name == "aten::mkldnn_rnn_layer":
            self.n_bytes = out[3].untyped_storage().nbytes()
        return out


@pytest.mark.parametrize(
    ("steps", "rows", "inputs", "hidden"),
    [(5, 3, 4, 6), (1, 1, 16, 16), (50, 2, 300, 64), (64, 8, 256, 256), (3, 33, 200, 100),
     (128, 1, 256, 100), (1, 2, 256, 16), (20, 16, 64, 512)],
)  # fmt: skip
def test_equal_to_the_kernel(steps: int, rows: int, inputs: int, hidden: int) -> None:
    with _Workspace() as mode:
        nn.LSTM(inputs, hidden)(torch.randn(steps, rows, inputs))
    assert mode.n_bytes > 0
    assert lstm_workspace_bytes(steps, rows, inputs, hidden) == mode.n_bytes
