from __future__ import annotations

from stagecut.ir.text import parse_graph
from stagecut.ir.verify import verify
from stagecut.passes.dead import drop_dead


def kept(body: str) -> list[str]:
    text = f'graph @G(%x: f32[2, 3] {{path="x"}}) {{\n weight @n: f32[] buffer\n{body}\n}}\n'
    return [op.name for op in verify(drop_dead(parse_graph(text))).ops]


def test_unread_pure_ops_go_with_all_that_only_they_read() -> None:
    assert kept(
        "%a: f32[2, 3] = aten.exp.default(%x)\n%b: f32[2, 3] = aten.sin.default(%a)\n"
        "%c: f32[2, 3] = aten.cos.default(%x)\nreturn (%c)"
    ) == ["c"]


def test_writes_and_what_they_read_stay() -> None:
    assert kept(
        "%a: f32[] = aten.sum.default(%x)\n"
        '%b: f32[] = aten.add_.Tensor(@n, %a) {mutates=["n"], aliases=["n"]}\n'
        "%c: f32[2, 3] = aten.cos.default(%x)\nreturn (%c)"
    ) == ["a", "b", "c"]


def test_a_random_op_that_is_unread_goes() -> None:
    assert kept(
        "%a: f32[2, 3] = aten.rand_like.default(%x) {random=true}\n"
        "%c: f32[2, 3] = aten.cos.default(%x)\nreturn (%c)"
    ) == ["c"]


def test_results_without_readers_stay_with_their_op() -> None:
    assert kept("(%a: f32[1, 3], %b: f32[1, 3]) = aten.split.Tensor(%x, 1)\nreturn (%b)") == ["a"]
