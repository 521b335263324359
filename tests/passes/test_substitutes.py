"""What is probed in the place of ops that fake tensors refuse."""

from __future__ import annotations

import torch
from torch import nn

from stagecut.frontend import trace
from stagecut.ir.devices import cluster
from stagecut.passes import annotate


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8, 16))

    def forward(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(rows, self.weight, offs=ends)


def test_a_grouped_product_costs_one_matrix_a_row() -> None:
    rows = torch.randn(6, 8, dtype=torch.bfloat16, requires_grad=True)
    ends = torch.tensor([2, 4, 6], dtype=torch.int32)
    graph = trace(Experts().bfloat16(), (rows, ends), split={"ends": None}).graph
    costed = annotate(graph, cluster(None, 1).devices[0], {}, True)
    (op,) = [op for op in costed.ops if op.target == "aten._grouped_mm.default"]
    assert op.cost is not None and op.cost.forward.flops == 2 * 6 * 8 * 16
    assert op.cost.backward_weight.flops == 2 * 6 * 8 * 16
    assert costed.notes == ("ends goes whole to every micro-batch: as declared",)
