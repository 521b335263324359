"""The text of a graph is the graph: printing and parsing are exact inverses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from stagecut.ir.errors import GraphError
from stagecut.ir.graph import Graph, refs
from stagecut.ir.text import parse_graph, print_graph
from stagecut.ir.verify import verify
from tests.ir.strategies import graphs

TEXT = """\
graph @MLP(%x: f32[s0=2, 8] {path="x", split=0}) {
  weight @layers.0.weight: f32[8, 8] parameter trainable {aliases=["head.weight"]}
  %linear: f32[s0=2, 8] grad = aten.linear.default(%x, @layers.0.weight) {scope="layers.0"}  # note
  return (%linear, none)
  range s0 1 none
  training true
}
"""


@given(graphs())
@settings(max_examples=300, deadline=None)
def test_printed_graphs_parse_to_themselves(graph: Graph) -> None:
    assert parse_graph(print_graph(verify(graph))) == graph


@given(graphs())
@settings(max_examples=100, deadline=None)
def test_an_op_s_references_are_those_of_its_arguments(graph: Graph) -> None:
    for op in graph.ops:
        named = [ref for arg in (*op.args, *(arg for _, arg in op.kwargs)) for ref in refs(arg)]
        assert list(op.refs) == named
        swapped = replace(op, args=tuple(reversed(op.args)))
        assert sorted(map(repr, swapped.refs)) == sorted(map(repr, op.refs))
        assert list(replace(op, args=(), kwargs=()).refs) == []


def test_the_readers_comments_are_passed_over() -> None:
    graph = parse_graph(TEXT)
    assert print_graph(graph) == TEXT.replace("  # note", "")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("return (", "retrn (", "line 5"),
        ("f32[8, 8] parameter", "f32[8, 8] paramter", "parameter, buffer or constant"),
        ("%x, @layers", "%x @layers", "expected ')'"),
        ("scope=", "scoop=", "unknown attribute 'scoop'"),
        ("s0=2, 8] {path", "s0=2, 8 {path", "not a dimension"),
    ],
)
def test_bad_text_is_shown_where_it_goes_wrong(old: str, new: str, message: str) -> None:
    with pytest.raises(GraphError) as raised:
        parse_graph(TEXT.replace(old, new, 1))
    assert message in str(raised.value)
    assert "^" in str(raised.value)
