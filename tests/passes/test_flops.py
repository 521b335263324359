"""FLOPs against torch's counter where it has a formula, against hand sums where it has none."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from stagecut.ir.devices import device
from stagecut.passes.costs import annotate
from tests.passes.models import Block, case, graph_of


@pytest.mark.parametrize("name", ["mlp", "conv", "block", "gru", "frozen"])
def test_equal_to_torch_s_counter(name: str) -> None:
    model, x, graph = case(name)
    costs = [op.cost for op in annotate(graph, device("cpu"), {}, True).ops]
    with FlopCounterMode(display=False) as forward:
        out = model(x)
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    assert sum(cost.forward.flops for cost in costs) == forward.get_total_flops() > 0
    assert sum(cost.backward.flops for cost in costs) == backward.get_total_flops() > 0


def test_halves_of_the_backward() -> None:
    _, _, graph = case("mlp")
    first, _, second = annotate(graph, device("cpu"), {}, True).ops
    assert first.target == second.target == "aten.linear.default"
    assert first.cost and second.cost
    assert first.cost.backward_input.flops == 0  # nobody needs the input's gradient
    assert first.cost.backward_weight.flops == 2 * 5 * 8 * 16
    assert second.cost.backward_input.flops == 2 * 5 * 16 * 4
    assert second.cost.backward_weight.flops == 2 * 5 * 16 * 4


def test_frozen_weights_take_no_backward() -> None:
    _, _, graph = case("frozen")
    ops = annotate(graph, device("cpu"), {}, True).ops
    flops = {
        op.scope: (op.cost.backward_input.flops, op.cost.backward_weight.flops)
        for op in ops
        if op.cost and op.target == "aten.linear.default"
    }
    one = 2 * 5 * 8 * 8
    assert flops == {"a": (0, 0), "b": (0, one), "c": (one, 0), "d": (0, 0)}


def test_attention_on_the_cpu_counts_its_matrix_products() -> None:
    _, _, graph = case("block fused")
    (cost,) = (
        op.cost for op in annotate(graph, device("cpu"), {}, True).ops if "scaled_dot" in op.target
    )
    rows, heads, length, width = 3, 4, 7, 4
    product = 2 * rows * heads * length * length * width
    assert cost is not None
    assert cost.forward.flops == 2 * product
    assert cost.backward_input.flops == 5 * product  # the scores again, and four more


def test_fused_and_spelt_out_attention_agree_forward() -> None:
    fused, plain = (graph_of(Block(f), torch.zeros(3, 7).long()) for f in (True, False))
    totals = [
        sum(op.cost.forward.flops for op in annotate(g, device("cpu"), {}, True).ops if op.cost)
        for g in (fused, plain)
    ]
    assert totals[0] == totals[1]


def test_lstm_by_hand() -> None:
    _, _, graph = case("lstm deep")
    ops = annotate(graph, device("cpu"), {}, True).ops
    (cost,) = (op.cost for op in ops if op.target == "aten.lstm.input")
    steps, rows, inputs, hidden = 5, 3, 4, 6
    gates = 4 * hidden
    layers = [2 * steps * rows * gates * (width + hidden) for width in (inputs, 2 * hidden)]
    assert cost is not None
    assert cost.forward.flops == 2 * sum(layers)  # two directions
    assert cost.backward.flops == 2 * cost.forward.flops


def test_gru_by_hand() -> None:
    _, _, graph = case("gru")
    ops = annotate(graph, device("cpu"), {}, True).ops
    (cost,) = (op.cost for op in ops if op.target == "aten.gru.input")
    steps, rows, inputs, hidden = 5, 3, 4, 6
    assert cost is not None
    assert cost.forward.flops == 2 * steps * rows * 3 * hidden * (inputs + hidden)


def test_grouped_products_by_hand() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 16, 32, dtype=torch.bfloat16))

        def forward(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            return F.grouped_mm(rows, self.weight, offs=ends)

    ends = torch.tensor([2, 5, 8], dtype=torch.int32)
    graph = graph_of(Experts(), torch.randn(8, 16).bfloat16(), ends)
    (op,) = (op for op in annotate(graph, device("cpu"), {}, True).ops if "grouped" in op.target)
    assert op.cost is not None
    assert op.cost.forward.flops == 2 * 8 * 16 * 32
    assert op.cost.backward_input.flops == 0
    assert op.cost.backward_weight.flops == 2 * 8 * 16 * 32


def test_elementwise_work_is_counted_apart() -> None:
    _, _, graph = case("mlp")
    relu = annotate(graph, device("cpu"), {}, True).ops[1]
    assert relu.cost is not None
    assert relu.cost.forward.flops == 0
    assert relu.cost.forward.elementwise_flops == 5 * 16
    assert relu.cost.forward.bytes == 2 * 5 * 16 * 4
    assert relu.cost.forward.kernels == 1
