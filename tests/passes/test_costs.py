"""Annotation: which values require grad, seconds, dtypes, fallbacks, speed."""

from __future__ import annotations

import copy
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from stagecut.ir.cost import Work
from stagecut.ir.devices import DEVICES, cluster, device
from stagecut.ir.graph import Graph
from stagecut.ir.text import parse_graph
from stagecut.ir.verify import verify
from stagecut.passes.costs import annotate
from tests.passes.models import CASES, case, graph_of
from tests.support.interpret import interpret, weights_of


@pytest.mark.parametrize("name", CASES)
def test_requires_grad_is_autograd_s_own(name: str) -> None:
    model, x, graph = case(name)
    costed = verify(annotate(graph, device("cpu"), {}, True))
    everything = replace(costed, outputs=tuple(_refs(costed)))
    tensors = interpret(everything, [x], weights_of(model))
    expected = {value.name: value.requires_grad for op in costed.ops for value in op.results}
    real = {
        ref.name: tensor.requires_grad if isinstance(tensor, torch.Tensor) else False
        for ref, tensor in zip(_refs(costed), tensors, strict=True)
    }
    assert expected == real


def _refs(graph: Graph):  # type: ignore[no-untyped-def]
    from stagecut.ir.graph import Ref

    return [Ref(value.name) for op in graph.ops for value in op.results]


def test_no_grad_regions_require_nothing() -> None:
    _, _, graph = case("frozen")
    ops = annotate(graph, device("cpu"), {}, True).ops
    region = [op for op in ops if op.context]
    assert region and not any(value.requires_grad for op in region for value in op.results)
    assert all(op.cost and op.cost.backward == Work() and not op.cost.saved for op in region)


TEXT = """
graph @G(%x: f32[64, 512] {path="x", split=0}) {
  weight @w: f32[512, 512] parameter trainable
  %a: f32[64, 512] = aten.linear.default(%x, @w)
  %b: f32[64, 512] = aten.linear.default(%a, @w) {context=[autocast("bfloat16", true)]}
  %c: f32[64, 512] = aten.relu.default(%a)
  return (%b, %c)
}
"""


def test_seconds_are_the_roofline() -> None:
    card = device("A100")
    linear, *_ = annotate(parse_graph(TEXT), card, {}, True).ops
    assert linear.cost is not None
    flops, n_bytes = 2 * 64 * 512 * 512, 4 * (64 * 512 + 512 * 512 + 64 * 512)
    assert linear.cost.forward.flops == flops
    assert linear.cost.forward.bytes == n_bytes
    expected = card.launch_seconds + max(
        flops / card.attainable_flops_per_second("float32"),
        n_bytes / card.attainable_bytes_per_second,
    )
    assert linear.cost.forward.seconds == pytest.approx(expected)


def test_low_precision_is_faster_where_the_device_has_it() -> None:
    def seconds(dtype: str, name: str) -> float:
        text = TEXT.replace("64, 512]", "4096, 4096]").replace("512, 512]", "4096, 4096]")
        graph = parse_graph(text.replace("f32", dtype))
        cost = annotate(graph, device(name), {}, False).ops[0].cost
        assert cost is not None
        return cost.forward.seconds

    for name in ("A100", "H100", "L4", "MI300X"):
        assert seconds("bf16", name) < seconds("f16", name) * 1.01
        assert seconds("f32", name) > 2 * seconds("bf16", name)
    assert seconds("f16", "V100") < seconds("f32", "V100") / 4
    assert seconds("bf16", "V100") > seconds("f16", "V100")  # no bfloat16 units: float32 rate


class Mixed(nn.Module):
    """One of each class of product, large enough that no kernel waits for memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lstm = nn.Conv2d(512, 512, 3, padding=1), nn.LSTM(4096, 4096)
        self.linear = nn.Linear(4096, 4096)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = self.conv(x.view(8, 512, 64, 64))
        rows = self.lstm(image.reshape(8, -1, 4096))[0]
        heads = rows.reshape(8, 4, -1, 1024)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return self.linear(mixed.reshape(8, -1, 4096))


def test_each_class_of_op_runs_at_the_rate_of_its_dtype() -> None:
    with torch.device("meta"):
        model, x = Mixed(), torch.zeros(8, 512 * 64 * 64)

    def seconds(model: nn.Module, x: torch.Tensor, dtype: str | None) -> dict[str, float]:
        card = cluster("A100", 1).running(dtype).devices[0]
        found = {}
        for op in annotate(graph_of(model, x), card, {}, False).ops:
            assert op.cost is not None
            if op.cost.forward.flops:
                flops = op.cost.forward.flops
                found[op.target.split(".")[1]] = op.cost.forward.seconds / flops * 1e12
        return found

    names = {"conv2d", "lstm", "scaled_dot_product_attention", "linear"}
    strict, usual, loose = (seconds(model, x, dtype) for dtype in ("float32", None, "tf32"))
    half = seconds(copy.deepcopy(model).bfloat16(), x.bfloat16(), None)
    assert strict.keys() == half.keys() == names
    for name in names:
        assert strict[name] > 4 * loose[name] > 6 * half[name], name
        assert usual[name] == (loose if name in ("conv2d", "lstm") else strict)[name]


def test_autocast_changes_the_rate_and_adds_casts() -> None:
    first, mixed, _ = annotate(parse_graph(TEXT), device("A100"), {}, True).ops
    assert first.cost and mixed.cost
    assert mixed.cost.forward.kernels == first.cost.forward.kernels + 2  # x and w are cast
    assert {saved.n_bytes for saved in mixed.cost.saved} == {2 * 64 * 512, 2 * 512 * 512}


def test_a_value_s_gradients_are_summed_once_for_each_further_user() -> None:
    linear, mixed, relu = annotate(parse_graph(TEXT), device("A100"), {}, True).ops
    assert linear.cost and mixed.cost and relu.cost
    assert relu.cost.backward_input.kernels == 1  # the last user: its gradient comes first
    alone = parse_graph(TEXT.replace("return (%b, %c)", "return (%b)"))
    (_, only, _) = annotate(alone, device("A100"), {}, True).ops
    assert only.cost is not None
    assert mixed.cost.backward_input.kernels == only.cost.backward_input.kernels + 1


def test_results_that_no_gradient_reaches_take_no_backward() -> None:
    text = TEXT.replace("return (%b, %c)", "return (%b)")
    relu = annotate(parse_graph(text), device("A100"), {}, True).ops[2]
    assert relu.results[0].requires_grad
    assert relu.cost and relu.cost.backward == Work()


def test_an_op_that_cannot_be_probed_is_estimated_and_the_notes_say_so() -> None:
    text = TEXT.replace("aten.relu.default(%a)", "aten.nosuchthing.default(%a)")
    graph = annotate(parse_graph(text), device("A100"), {}, True)
    cost = graph.ops[2].cost
    assert cost is not None
    assert cost.forward.bytes == 2 * 64 * 512 * 4
    (note,) = graph.notes
    assert "aten.nosuchthing.default" in note and "estimated" in note


def test_opaque_modules_are_run_with_fake_weights() -> None:
    text = """
graph @G(%x: f32[5, 8] {path="x", split=0}) {
  weight @inner.weight: f32[4, 8] parameter trainable
  weight @inner.bias: f32[4] parameter trainable
  %a: f32[5, 4] = module:inner(%x)
  return (%a)
}
"""
    module = nn.Linear(8, 4)
    before = {name: t.clone() for name, t in module.state_dict().items()}
    graph = annotate(parse_graph(text), device("cpu"), {"inner": module}, True)
    (op,) = graph.ops
    assert graph.notes == ()
    assert op.cost and op.cost.forward.flops == 2 * 5 * 8 * 4
    assert op.cost.backward_weight.flops == 2 * 5 * 8 * 4
    assert op.results[0].requires_grad
    assert [(s.kind, s.index, s.n_bytes) for s in op.cost.saved] == [("argument", 0, 5 * 8 * 4)]
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())


def test_every_device_can_be_planned_for() -> None:
    _, _, graph = case("mlp")
    times = {
        name: sum(op.cost.forward.seconds for op in annotate(graph, card, {}, True).ops if op.cost)
        for name, card in DEVICES.items()
    }
    assert all(seconds > 0 for seconds in times.values())


def test_repeated_layers_cost_no_more_time_to_annotate() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(400))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = torch.relu(layer(x))
            return x

    graph = graph_of(Deep(), torch.randn(4, 8))
    start = time.perf_counter()
    costed = annotate(graph, device("A100"), {}, True)
    assert time.perf_counter() - start < 2
    inner = {repr(op.cost) for op in costed.ops[2:-2] if op.target == "aten.linear.default"}
    assert len(inner) == 1


def test_a_gradient_passes_through_a_write_into_a_view() -> None:
    text = """
graph @G(%x: f32[4, 8] {path="x", split=0}) {
  weight @w: f32[8, 8] parameter trainable
  %a: f32[4, 8] = aten.linear.default(%x, @w)
  %z: f32[2, 4, 8] = aten.zeros.default([2, 4, 8])
  %s: f32[4, 8] = aten.select.int(%z, 0, 0) {aliases=["z"]}
  %c: f32[4, 8] = aten.copy_.default(%s, %a) {mutates=["s"], aliases=["s"]}
  %y: f32[2, 4, 8] = aten.exp.default(%z)
  return (%y)
}
"""
    linear, *_, last = annotate(parse_graph(text), device("cpu"), {}, True).ops
    assert last.results[0].requires_grad
    assert linear.cost and linear.cost.backward_weight.flops == 2 * 4 * 8 * 8


def test_what_runs_in_the_other_mode_alone_costs_nothing() -> None:
    text = """
graph @G(%x: f32[4, 8] {path="x", split=0}) {
  weight @w: f32[8, 8] parameter trainable
  %a: f32[4, 8] = aten.linear.default(%x, @w) {context=[training(true)]}
  %b: f32[4, 8] = aten.relu.default(%x) {context=[training(false)]}
  %c: f32[4, 8] = operator.getitem([%a, %b], mode(0, 1)) {aliases=["a", "b"]}
  return (%c)
}
"""
    for training in (True, False):
        a, b, c = annotate(parse_graph(text), device("cpu"), {}, training).ops
        assert a.cost and b.cost
        assert bool(a.cost.forward.kernels) == training
        assert bool(b.cost.forward.kernels) != training
        assert c.results[0].requires_grad == training
