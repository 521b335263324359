"""Every rule of the verifier catches what breaks it, and all faults come at once."""

from __future__ import annotations

import pytest

from stagecut.ir.errors import GraphError
from stagecut.ir.text import parse_graph
from stagecut.ir.verify import verify

GOOD = """\
graph @M(%x: f32[2] {path="x"}) {
  weight @w: f32[2] parameter trainable
  %a: f32[2] = aten.add.Tensor(%x, @w) {scope="first", source="user.py:7"}
  %b: f32[2] = aten.relu_.default(%a) {mutates=["a"]}
  return (%b)
  training true
}
"""


def test_a_good_graph_passes() -> None:
    verify(parse_graph(GOOD))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%b: f32[2] =", "%a: f32[2] =", "%a is defined 2 times"),
        ("add.Tensor(%x", "add.Tensor(%b", "%b is read before it is defined"),
        ("@w)", "@v)", "@v is not a weight of the graph"),
        ("return (%b)", "return (%c)", "the output c is never defined"),
        ('mutates=["a"]', 'mutates=["x"]', "its effects name x, which it does not read"),
        ("parameter trainable", "buffer trainable", "@w is a buffer and trainable"),
        ("%b: f32[2] =", "(%b: f32[2], %c: f32[2]) =", None),
    ],
)
def test_rules(old: str, new: str, message: str | None) -> None:
    graph = parse_graph(GOOD.replace(old, new, 1))
    if message is None:
        verify(graph)
        return
    with pytest.raises(GraphError) as raised:
        verify(graph)
    assert message in str(raised.value)


def test_all_faults_come_at_once_with_the_users_line() -> None:
    graph = parse_graph(GOOD.replace("(%x, @w)", "(%y, @v)", 1))
    with pytest.raises(GraphError) as raised:
        verify(graph)
    assert "breaks 2 rules" in str(raised.value)
    assert "(user.py:7)" in str(raised.value)
