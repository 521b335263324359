"""Two traces as one graph, in the language of graphs."""

from __future__ import annotations

import pytest

from stagecut.frontend.align import NoMatch, align, refuse_eval
from stagecut.ir.graph import Graph
from stagecut.ir.text import parse_graph, print_graph
from stagecut.ir.verify import verify


def graph(body: str, result: str = "%z") -> Graph:
    lines = "\n".join(f"  {line}" for line in body.strip().splitlines())
    return parse_graph(
        f'graph @M(%x: f32[2, 3] {{path="x", split=0}}) {{\n{lines}\n  return ({result})\n}}\n'
    )


def ops(g: Graph) -> list[str]:
    return [line.strip() for line in print_graph(g).splitlines() if " = " in line]


TRAIN = graph(
    """
%n: f32[2, 3] = aten.rand_like.default(%x) {random=true}
%y: f32[2, 3] = aten.add.Tensor(%x, %n)
%z: f32[2, 3] = aten.mul.Tensor(%y, 0.5)
"""
)


def test_the_same_graph_stays_as_it_is() -> None:
    assert align(TRAIN, TRAIN) == TRAIN


def test_ops_of_one_mode_and_a_choice_between_values() -> None:
    evaluated = graph("%z: f32[2, 3] = aten.mul.Tensor(%x, 1.0)")
    both = verify(align(TRAIN, evaluated))
    written = ops(both)
    assert len(written) == 4
    assert "%y_by_mode" in written[2] and "operator.getitem" in written[2]
    assert "aten.mul.Tensor(%y_by_mode, mode(0.5, 1.0))" in written[3]
    assert [bool(op.context) for op in both.ops] == [True, True, False, False]


def test_ops_of_eval_alone_get_names_of_their_own() -> None:
    evaluated = graph(
        """
%n: f32[2, 3] = aten.tanh.default(%x)
%z: f32[2, 3] = aten.mul.Tensor(%n, 0.5)
"""
    )
    both = verify(align(TRAIN, evaluated))
    assert "n_1" in {op.name for op in both.ops}


def test_the_output_may_be_a_choice() -> None:
    evaluated = graph("%n: f32[2, 3] = aten.tanh.default(%x)", "%n")
    both = verify(align(TRAIN, evaluated))
    assert both.ops[-1].target == "operator.getitem"
    assert both.outputs[0].name == both.ops[-1].name  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("body", "result", "reason"),
    [
        ("%z: f32[2, 3] = aten.mul.Tensor(%x, 0.5)", "%z, %z", "outputs differ in number"),
        ("%z: f32[2, 4] = aten.tanh.default(%x)", "%z", r"f32\[2, 3\] in train, and f32\[2, 4\]"),
        ("%z: f32[2, 3] = aten.tanh.default(%x)", "none", "in train and None in eval"),
    ],
)
def test_what_cannot_be_one_graph(body: str, result: str, reason: str) -> None:
    with pytest.raises(NoMatch, match=reason):
        align(TRAIN, graph(body, result))


def test_a_refusal_is_an_op_and_a_note() -> None:
    refused = verify(refuse_eval(TRAIN, "because"))
    assert refused.ops[0].target == "stagecut.refuse" and refused.ops[1:] == TRAIN.ops
    assert refused.notes == ("only training: because",)
    assert parse_graph(print_graph(refused)) == refused
