"""Out-of-place rewriting: text in, text out, and equal values before and after."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stagecut.ir.graph import Graph
from stagecut.ir.text import parse_graph
from stagecut.ir.verify import verify
from stagecut.passes.functional import out_of_place
from tests.passes.models import graph_of
from tests.support.interpret import interpret, weights_of


def mutations(graph: Graph) -> list[str]:
    return [name for op in graph.ops for name in op.effects.mutates]


def targets(graph: Graph) -> list[str]:
    return [op.target.split(".")[1] for op in graph.ops]


def rewritten(body: str, inputs: str = '%x: f32[2, 3] {path="x", split=0}') -> Graph:
    return verify(out_of_place(verify(parse_graph(f"graph @G({inputs}) {{\n{body}\n}}\n"))))


BASE = "%a: f32[2, 3] = aten.mul.Tensor(%x, 2)\n"
ADD = '%b: f32[2, 3] = aten.add_.Tensor(%a, %x) {mutates=["a"], aliases=["a"]}\n'


def test_uses_after_it_are_renamed_uses_before_it_are_not() -> None:
    graph = rewritten(
        BASE
        + "%early: f32[2, 3] = aten.exp.default(%a)\n"
        + ADD
        + "%late: f32[2, 3] = aten.exp.default(%a)\n  return (%early, %late, %a)"
    )
    assert targets(graph) == ["mul", "exp", "add", "exp"]
    assert [op.args[0].name for op in graph.ops[1:]] == ["a", "a", "b"]  # type: ignore[union-attr]
    assert [ref.name for ref in graph.outputs] == ["early", "late", "b"]  # type: ignore[union-attr]
    assert mutations(graph) == []


def test_chains_end_at_the_last_name() -> None:
    graph = rewritten(
        BASE
        + ADD
        + '%c: f32[2, 3] = aten.relu_.default(%b) {mutates=["b"], aliases=["b"]}\n'
        + '%d: f32[2, 3] = aten.mul_.Tensor(%a, 3) {mutates=["a"], aliases=["a"]}\n'
        + "return (%a, %b, %c, %d)"
    )
    assert targets(graph) == ["mul", "add", "relu", "mul"]
    assert [ref.name for ref in graph.outputs] == ["d", "d", "d", "d"]  # type: ignore[union-attr]
    assert graph.ops[-1].args[0].name == "c"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('%b: f32[2, 3] = aten.add_.Tensor(%x, 1) {mutates=["x"], aliases=["x"]}\n return (%b)',
         "the base is an input"),
        ('%v: f32[6] = aten.view.default(%x, [6]) {aliases=["x"]}\n'
         '%b: f32[6] = aten.add_.Tensor(%v, 1) {mutates=["v"], aliases=["v"]}\n return (%b)',
         "the base is a view of an input"),
        (BASE + '%v: f32[6] = aten.view.default(%a, [6]) {aliases=["a"]}\n' + ADD
         + "%c: f32[6] = aten.exp.default(%v)\n return (%b, %c)", "a view is read later"),
        (BASE + '%v: f32[6] = aten.view.default(%a, [6]) {aliases=["a"]}\n' + ADD
         + "return (%b, %v)", "a view is an output"),
        (BASE + '%v: f32[6] = aten.view.default(%a, [6]) {aliases=["a"]}\n'
         + '%b: f32[6] = aten.add_.Tensor(%v, 1) {mutates=["v"], aliases=["v"]}\n return (%a)',
         "what is written is a view and the base is read later"),
        (BASE + '%b: f32[2, 3] = aten.add_.Tensor(%a, %x) '
         '{context=[training(true)], mutates=["a"], aliases=["a"]}\n return (%a)',
         "it runs in one mode only"),
        ("%h: f16[2, 3] = aten.to.dtype(%x, torch.float16)\n"
         '%b: f16[2, 3] = aten.add_.Tensor(%h, %x) {mutates=["h"], aliases=["h"]}\n return (%b)',
         "out of place the result would be float32"),
    ],
)  # fmt: skip
def test_what_stays_in_place(body: str, why: str) -> None:
    assert mutations(rewritten(body)), why


def test_a_view_that_nobody_reads_again_is_no_hindrance() -> None:
    graph = rewritten(
        BASE
        + '%v: f32[6] = aten.view.default(%a, [6]) {aliases=["a"]}\n'
        + "%s: f32[6] = aten.exp.default(%v)\n"
        + ADD
        + "return (%b, %s)"
    )
    assert mutations(graph) == []


def test_buffers_keep_their_writes() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1  # type: ignore[operator]
            y = x * 2
            y += self.count  # type: ignore[arg-type]
            return y

    graph = out_of_place(graph_of(Counting(), torch.randn(2, 3)))
    assert set(mutations(graph)) == {"count"}
    assert "add" in targets(graph)  # of y


class Residual(nn.Module):
    """Every in-place form that models use."""

    def __init__(self, body: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.body(self.first(x)))


def _add_twice(h: torch.Tensor) -> torch.Tensor:
    h += torch.tanh(h)
    h += torch.relu(h)
    return h


def _through_view(h: torch.Tensor) -> torch.Tensor:
    flat = h.view(-1)
    flat.mul_(2)
    return h + 1


def _write_slice(h: torch.Tensor) -> torch.Tensor:
    h = h.clone()
    h[:, :2] = h[:, 2:4] * 3
    return h


def _mask(h: torch.Tensor) -> torch.Tensor:
    return (h * 1).masked_fill_(h > 0, 0.5).clamp_(min=-1).unsqueeze_(0).squeeze_(0)


BODIES = {
    "add twice": (_add_twice, True),
    "relu": (lambda h: F.relu(h, inplace=True) + 1, True),
    "silu, dropout of nothing": (
        lambda h: F.dropout(F.silu(h, inplace=True), 0.0, True, True), True
    ),
    "mask, clamp, squeeze": (_mask, True),
    "through a view": (_through_view, False),
    "a slice": (_write_slice, False),
    "copy, which has no derivative out of place": (
        lambda h: torch.zeros_like(h).copy_(h) * 2, False
    ),
    "fill": (lambda h: h * torch.empty_like(h).fill_(2.0), True),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_values_and_gradients_stay(name: str) -> None:
    body, gone = BODIES[name]
    torch.manual_seed(0)
    model, x = Residual(body), torch.randn(4, 6)
    graph = graph_of(model, x)
    rewritten_graph = verify(out_of_place(graph))
    assert mutations(graph) or "mask" in name
    assert bool(mutations(rewritten_graph)) != gone
    _same(model, graph, rewritten_graph, x)


def _same(model: nn.Module, before: Graph, after: Graph, x: torch.Tensor) -> None:
    results = []
    for graph in (before, after):
        twin = copy.deepcopy(model)
        (out,) = interpret(graph, [x], weights_of(twin))
        out.square().sum().backward()
        results.append((out, *(p.grad for p in twin.parameters())))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
