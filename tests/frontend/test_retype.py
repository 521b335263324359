from __future__ import annotations

import torch
from torch import nn

from stagecut.frontend import trace
from stagecut.ir.graph import Graph


class Flattening(nn.Module):
    """Rows and tokens in one dimension, as transformers' products take them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.view(-1, 4)).view(x.shape)


def _shapes(graph: Graph) -> list[tuple[int, ...]]:
    values = [v for op in graph.ops for v in op.results]
    return [v.type.hint_shape for v in values if hasattr(v.type, "hint_shape")]


def test_an_example_of_one_row_hints_one_row_everywhere() -> None:
    graph = trace(Flattening(), (torch.zeros(1, 7, 4),), {}, training=True).graph
    assert (7, 4) in _shapes(graph)
    assert all(shape in ((7, 4), (1, 7, 4)) for shape in _shapes(graph)), _shapes(graph)
