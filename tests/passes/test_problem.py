"""The partitioning problem of graphs written as text."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagecut.ir.device import Link
from stagecut.ir.devices import cluster, device
from stagecut.ir.errors import ArgumentError, InfeasibleError
from stagecut.ir.graph import Graph
from stagecut.ir.problem import Problem
from stagecut.ir.solution import Assignment
from stagecut.ir.text import parse_graph
from stagecut.ir.verify import verify
from stagecut.partitioner.evaluate import evaluate
from stagecut.passes import groups
from stagecut.passes.costs import annotate
from stagecut.passes.groups import Clustering
from stagecut.passes.problem import build_problem, stages_of_ops


def graph_of_text(body: str, weights: str = "", inputs: str = "") -> Graph:
    given = inputs or '%x: f32[8, 8] {path="x", split=0}'
    graph = verify(parse_graph(f"graph @G({given}) {{\n{weights}\n{body}\n}}\n"))
    return annotate(graph, device("A100"), {}, True)


def built(
    graph: Graph, n_stages: int = 2, pins: Mapping[str, int] | None = None, **other: Any
) -> tuple[Problem, Clustering]:
    arguments: dict[str, Any] = {
        "cluster": cluster("dgx-a100", n_stages), "n_microbatches": 4,
        "in_flight": range(n_stages, 0, -1), "memory_limit": None, "optimizer": "adamw",
        "training": True,
    }  # fmt: skip
    arguments.update(other)
    return build_problem(graph, n_stages=n_stages, pins=pins or {}, **arguments)


def together(graph: Graph, *names: str) -> bool:
    _, clustering = built(graph)
    index = {op.name: clustering.cluster_of_op[i] for i, op in enumerate(graph.ops)}
    return len({index[name] for name in names}) == 1


LINE = """
  %a: f32[8, 8] = aten.linear.default(%x, @w) {scope="first"}
  %b: f32[8, 8] = aten.relu.default(%a) {scope="second.act"}
  %c: f32[8, 8] = aten.linear.default(%b, @v) {scope="second.out"}
  return (%c)
"""
WEIGHTS = """
  weight @w: f32[8, 8] parameter trainable
  weight @v: f32[8, 8] parameter trainable aliases=["tied"]
""".replace('aliases=["tied"]', '{aliases=["tied"]}')


def test_arrays_of_a_line_of_ops() -> None:
    graph = graph_of_text(LINE, WEIGHTS)
    problem, clustering = built(graph)
    tensor = 8 * 8 * 4
    assert clustering.cluster_of_op == (0, 1, 2)
    assert problem.names == ("a", "b", "c")
    assert problem.scopes == ("first", "second.act", "second.out")
    assert problem.edges.tolist() == [[0, 1], [1, 2]]
    assert [problem.values[i].tolist() for i in range(len(problem.values))] == [[0, 1], [1, 2]]
    assert problem.value_forward_bytes.tolist() == [tensor, tensor]
    assert problem.value_backward_bytes.tolist() == [tensor, tensor]
    assert problem.weight_bytes.tolist() == [4 * tensor, 4 * tensor]  # itself, gradient, moments
    assert problem.pins.tolist() == [-1, -1, 1]
    costs = [op.cost for op in graph.ops if op.cost]
    assert problem.forward_seconds[0].tolist() == [cost.forward.seconds for cost in costs]
    assert problem.backward_seconds[0].tolist() == [cost.backward.seconds for cost in costs]
    saved = {tuple(problem.saved[i].tolist()) for i in range(len(problem.saved))}
    assert saved == {(1, 2)}  # relu's result, which both need; x is the user's
    assert problem.saved_bytes.tolist() == [tensor]


def test_inference_has_no_gradients_state_or_saved_tensors() -> None:
    graph = annotate(graph_of_text(LINE, WEIGHTS), device("A100"), {}, False)
    problem, _ = built(graph, training=False)
    assert problem.value_backward_bytes.tolist() == [0, 0]
    assert problem.weight_bytes.tolist() == [256, 256]
    assert len(problem.saved) == 0
    assert problem.backward_seconds.sum() == 0


def test_a_weight_of_two_clusters_costs_a_gradient_sum() -> None:
    graph = graph_of_text(LINE.replace("@v", "@w"), WEIGHTS)
    group = cluster("dgx-a100", 2)
    problem, _ = built(graph, cluster=group)
    assert [problem.weights[i].tolist() for i in range(len(problem.weights))] == [[0, 2]]
    assert problem.weight_sync_seconds.tolist() == [2 * group.link(0, 1).seconds(256) / 4]


def test_frozen_weights_and_buffers_need_no_sum() -> None:
    weights = "weight @w: f32[8, 8] parameter\n weight @v: f32[8, 8] buffer"
    problem, _ = built(graph_of_text(LINE.replace("@v", "@w"), weights))
    assert problem.weight_sync_seconds.tolist() == [0]
    assert problem.weight_bytes.tolist() == [256]
    assert problem.value_backward_bytes.tolist() == [0, 0]


def test_sizes_and_tensors_from_nothing_run_wherever_they_are_needed() -> None:
    graph = graph_of_text(
        """
  %n: int(s0=8) = aten.sym_size.int(%x, 0)
  %m: int(s0*2=16) = operator.mul(%n, 2)
  %r: i64[s0=8] = aten.arange.default(%n)
  %f: i64[s0=8] = aten.add.Tensor(%r, 1)
  %a: f32[s0=8, 8] = aten.exp.default(%x)
  %b: f32[s0=8, 8] = aten.index_select.default(%a, 0, %f)
  %c: f32[s0=8, 8] = aten.mul.Tensor(%b, %m)
  return (%c, %r)
""",
        inputs='%x: f32[s0=8, 8] {path="x", split=0}',
    )
    problem, clustering = built(graph, 3)
    assert clustering.cluster_of_op == (-1, -1, -1, -1, 0, 1, 2)
    assert len(problem.values) == 2
    stages = stages_of_ops(graph, clustering, np.array([0, 1, 2]))
    assert stages == ((1, 2), (2,), (1, 2), (1,), (0,), (1,), (2,))


def test_a_tensor_made_from_nothing_and_then_written_belongs_to_one_stage() -> None:
    graph = graph_of_text(
        """
  %z: f32[8, 8] = aten.zeros.default([8, 8])
  %s: f32[8] = aten.select.int(%z, 0, 0) {aliases=["z"]}
  %w: f32[8] = aten.copy_.default(%s, %x) {mutates=["s"], aliases=["s"]}
  %c: f32[8, 8] = aten.exp.default(%z)
  return (%c)
""",
        inputs='%x: f32[8] {path="x", split=0}',
    )
    assert together(graph, "z", "s", "w", "c")


BUFFER = """
  %a: f32[8, 8] = aten.linear.default(%x, @w)
  %b: f32[8, 8] = aten.mul.Tensor(%a, @n)
  %m: f32[8, 8] = aten.exp.default(%b)
  %u: f32[] = aten.add_.Tensor(@n, 1) {mutates=["n"], aliases=["n"]}
  %k: f32[8, 8] = aten.mul.Tensor(%m, @n)
  %c: f32[8, 8] = aten.relu.default(%k)
  return (%c)
"""
BUFFERS = "weight @w: f32[8, 8] parameter trainable\n weight @n: f32[] buffer"


def test_readers_and_writers_of_a_buffer_stay_together_with_what_lies_between() -> None:
    graph = graph_of_text(BUFFER, BUFFERS)
    assert together(graph, "b", "u", "k")
    assert together(graph, "b", "m")  # m is after b and before k: a cycle otherwise
    assert not together(graph, "a", "b")


def test_readers_of_a_buffer_that_nobody_writes_may_part() -> None:
    lines = [line for line in BUFFER.split("\n") if "add_" not in line]
    assert not together(graph_of_text("\n".join(lines), BUFFERS), "b", "k")


def test_an_input_that_is_written_ties_its_readers() -> None:
    graph = graph_of_text(
        """
  %a: f32[8, 8] = aten.exp.default(%x)
  %i: f32[8, 8] = aten.add_.Tensor(%x, 1) {mutates=["x"], aliases=["x"]}
  %b: f32[8, 8] = aten.sin.default(%a)
  %c: f32[8, 8] = aten.mul.Tensor(%b, %i)
  return (%c)
"""
    )
    assert together(graph, "a", "i", "c")


def test_an_op_kept_for_its_effect_alone_joins_its_module() -> None:
    graph = graph_of_text(
        """
  %a: f32[8, 8] = aten.exp.default(%x) {scope="other"}
  %u: f32[] = aten.add_.Tensor(@n, 1) {scope="norm", mutates=["n"], aliases=["n"]}
  %b: f32[8, 8] = aten.sin.default(%a) {scope="norm"}
  %c: f32[8, 8] = aten.cos.default(%b) {scope="last"}
  return (%c)
""",
        "weight @n: f32[] buffer",
    )
    assert together(graph, "u", "b")
    assert not together(graph, "u", "a")


def test_effects_after_the_last_output_run_on_the_last_stage() -> None:
    graph = graph_of_text(
        """
  %a: f32[8, 8] = aten.exp.default(%x)
  %c: f32[8, 8] = aten.cos.default(%a)
  %s: f32[] = aten.sum.default(%a)
  %u: f32[] = aten.add_.Tensor(@n, %s) {mutates=["n"], aliases=["n"]}
  return (%c)
""",
        "weight @n: f32[] buffer",
    )
    problem, clustering = built(graph)
    pins = dict(zip("acsu", problem.pins[list(clustering.cluster_of_op)], strict=True))
    assert pins == {"a": -1, "c": 1, "s": 1, "u": 1}


def test_every_output_is_needed_on_the_last_stage() -> None:
    graph = graph_of_text(
        """
  %a: f32[8, 8] = aten.exp.default(%x)
  %b: f32[8, 8] = aten.sin.default(%a)
  %c: f32[8, 8] = aten.cos.default(%b)
  return (%a, %c, %x)
"""
    )
    problem, _ = built(graph)
    assert problem.values[0].tolist() == [0, 1, 2]
    assert [0, 2] in problem.edges.tolist()


def test_sizes_that_depend_on_data_do_not_cross() -> None:
    graph = graph_of_text(
        """
  %s: i64[] = aten.argmax.default(%x)
  %n: int(u0=3) = aten.item.default(%s)
  %a: f32[8, 8] = aten.exp.default(%x)
  %c: f32[3, 8] = aten.narrow.default(%a, 0, 0, %n)
  return (%c)
"""
    )
    assert together(graph, "n", "c")


def test_calls_of_a_module_with_buffers_stay_together() -> None:
    body = """
  %a: f32[8, 8] = module:norm(%x) {random=true}
  %b: f32[8, 8] = aten.exp.default(%a)
  %c: f32[8, 8] = module:norm(%b) {random=true}
  %d: f32[8, 8] = module:plain(%c) {random=true}
  %e: f32[8, 8] = aten.exp.default(%d)
  %f: f32[8, 8] = module:plain(%e) {random=true}
  return (%f)
"""
    graph = graph_of_text(body, "weight @norm.mean: f32[8] buffer")
    assert together(graph, "a", "b", "c") and not together(graph, "d", "f")


def test_tensors_whose_size_depends_on_data_do_not_cross() -> None:
    graph = graph_of_text(
        """
  %m: bool[8] = aten.isfinite.default(%w)
  %i: i64[u0=4] = aten.nonzero.default(%m)
  %b: f32[u0=4, 8] = aten.index.Tensor(%x, %i)
  %c: f32[u0=4, 8] = aten.exp.default(%b)
  %s: f32[8] = aten.sum.dim_IntList(%c, [0])
  %o: f32[8] = aten.exp.default(%s)
  return (%o)
""".replace("%w", "%x")
    )
    assert together(graph, "i", "b", "c", "s") and not together(graph, "s", "o")


@pytest.mark.parametrize(
    ("body", "joined"),
    [
        # alone with its reader and no smaller than what it views: joins the reader
        ("%v: f32[64] = aten.view.default(%a, [64])\n %b: f32[64] = aten.sin.default(%v)\n"
         " %o: f32[8, 8] = aten.cos.default(%a)", ("v", "b")),
        # smaller, and alone in viewing: joins the producer
        ("%v: f32[8] = aten.select.int(%a, 0, 0)\n %b: f32[8] = aten.sin.default(%v)\n"
         " %o: f32[8] = aten.cos.default(%b)", ("a", "v")),
    ],
)  # fmt: skip
def test_views_join_a_neighbour(body: str, joined: tuple[str, str]) -> None:
    graph = graph_of_text(
        f"%a: f32[8, 8] = aten.exp.default(%x)\n{body}\n"
        "%c: f32[8] = aten.sum.dim_IntList(%x, [0])\n return (%b, %o, %c)"
    )
    assert together(graph, *joined)


def test_a_view_with_several_readers_is_free() -> None:
    graph = graph_of_text(
        "%a: f32[8, 8] = aten.exp.default(%x)\n%v: f32[64] = aten.view.default(%a, [64])\n"
        "%b: f32[64] = aten.sin.default(%v)\n%c: f32[64] = aten.mul.Tensor(%v, %b)\n return (%c)"
    )
    assert not together(graph, "a", "v") and not together(graph, "v", "b")


def test_pins_reach_the_clusters() -> None:
    problem, _ = built(graph_of_text(LINE, WEIGHTS), 3, {"first": 1, "second": 2})
    assert problem.pins.tolist() == [1, 2, 2]
    problem, _ = built(graph_of_text(LINE, WEIGHTS), 3, {"second": 2, "second.act": 1})
    assert problem.pins.tolist() == [-1, 1, 2]


def test_every_wrong_pin_is_named_at_once() -> None:
    with pytest.raises(ArgumentError) as error:
        built(graph_of_text(LINE, WEIGHTS), 2, {"secnd": 0, "first": 7})
    assert "'secnd' (did you mean second" in str(error.value)
    assert "'first' is pinned to stage 7" in str(error.value)


def test_contradicting_pins_are_explained() -> None:
    graph = graph_of_text(
        BUFFER.replace("(%a, @n)", '(%a, @n) {scope="m"}').replace(
            "(%m, @n)", '(%m, @n) {scope="k"}'
        ),
        BUFFERS,
    )
    with pytest.raises(InfeasibleError, match=r"m to stage 0 and k to stage 1 \(they share n, wh"):
        built(graph, 2, {"m": 0, "k": 1})
    with pytest.raises(InfeasibleError, match="output"):
        built(graph_of_text(LINE, WEIGHTS), 2, {"second": 0})


def test_wrong_arguments_are_listed_together() -> None:
    bare = parse_graph('graph @G(%x: f32[2] {path="x"}) {\n%a: f32[2] = aten.exp.default(%x)\n'
                       "return (%a)\n}")  # fmt: skip
    with pytest.raises(ArgumentError) as error:
        built(bare, 2, in_flight=[1], memory_limit=[1.0])
    for part in ("in_flight has 1", "memory_limit has 1", "1 ops have no cost"):
        assert part in str(error.value)


def test_memory_limits() -> None:
    graph = graph_of_text(LINE, WEIGHTS)
    assert built(graph)[0].memory_limit_bytes.tolist() == [72e9, 72e9]  # less the margin
    assert built(graph, memory_limit=5.0)[0].memory_limit_bytes.tolist() == [5, 5]
    assert built(graph, memory_limit=[5.0, 6.0])[0].memory_limit_bytes.tolist() == [5, 6]


def test_mixed_devices_take_costs_for_each() -> None:
    graph = graph_of_text(LINE, WEIGHTS)
    mixed = replace(cluster("dgx-a100", 2), devices=(device("A100"), device("T4")))
    with pytest.raises(ArgumentError, match="no costs for the devices T4"):
        built(graph, cluster=mixed)
    other = annotate(graph, device("T4"), {}, True)
    problem, _ = built(graph, cluster=mixed, costed={"T4": other})
    assert problem.device_kind.tolist() == [0, 1]
    assert (problem.forward_seconds[1] > problem.forward_seconds[0]).all()


def test_links_inside_and_between_nodes() -> None:
    group = cluster("dgx-a100", 9)
    problem, _ = built(graph_of_text(LINE, WEIGHTS), 9, cluster=group)
    per_byte = problem.link_seconds_per_byte
    assert per_byte[0, 0] == 0
    assert per_byte[0, 1] == 1 / group.inside.bytes_per_second
    assert per_byte[0, 8] == 1 / group.between.bytes_per_second
    assert problem.link_latency_seconds[0, 8] == group.between.latency_seconds


def test_several_stages_on_one_device_send_for_nothing() -> None:
    problem, _ = built(graph_of_text(LINE, WEIGHTS), 4, cluster=cluster("dgx-a100", 2))
    assert problem.link_latency_seconds[0, 2] == 0 == problem.link_seconds_per_byte[1, 3]
    assert problem.link_latency_seconds[0, 1] > 0


# --- properties on random graphs --------------------------------------------------------------

PURE = ("exp", "view", "half", "half", "double")
OPS = (*PURE, "add", "write")


@st.composite
def programs(draw: st.DrawFn, kinds: tuple[str, ...] = OPS) -> str:
    """A random program over tensors of 32 and 64 elements, with views and writes."""
    names, lines = {"x": 64}, []
    for index in range(draw(st.integers(4, 7))):
        kind = draw(st.sampled_from(kinds))
        source = draw(st.sampled_from(list(names)[-2:]))
        size, name = names[source], f"t{index}"
        if kind == "write":
            lines.append(
                f'%{name}: f32[] = aten.add_.Tensor(@n, 1) {{mutates=["n"], aliases=["n"]}}'
            )
            continue
        if kind == "half" and size == 64:
            call, size = f"aten.select.int(%{source}, 0, 0)", 32
        elif kind == "double" and size == 32:
            call, size = f"aten.expand.default(%{source}, [2, 32])", 64  # a view of both halves
        elif kind == "view":
            call = f"aten.alias.default(%{source})"
        elif kind == "add":
            call = f"aten.add.Tensor(%{source}, @n)"
        else:
            call = f"aten.exp.default(%{source})"
        shape = "2, 32" if size == 64 else "32"
        lines.append(f"%{name}: f32[{shape}] = {call}")
        names[name] = size
    unread = [n for n in names if not any(f"(%{n}," in x or f"(%{n})" in x for x in lines)]
    outputs = ", ".join(f"%{n}" for n in unread if n != "x") or "%x"
    return "\n".join([*lines, f"return ({outputs})"])


def random_graph(program: str) -> Graph:
    return graph_of_text(program, "weight @n: f32[] buffer", '%x: f32[2, 32] {path="x", split=0}')


@settings(max_examples=60, deadline=None)
@given(programs())
def test_clusters_are_a_partition_in_topological_order(program: str) -> None:
    graph = random_graph(program)
    problem, clustering = built(graph)
    flat = sorted(op for ops in clustering.ops_of_cluster for op in ops)
    assert flat == [i for i, c in enumerate(clustering.cluster_of_op) if c >= 0]
    assert all(a < b for a, b in problem.edges.tolist())
    touching = {
        clustering.cluster_of_op[i] for i, op in enumerate(graph.ops)
        if any(getattr(arg, "name", None) == "n" for arg in op.args)
    }  # fmt: skip
    if any(op.effects.mutates for op in graph.ops):
        assert len(touching) == 1


@settings(max_examples=60, deadline=None)
@given(programs(PURE))
def test_contracting_views_loses_nothing(program: str) -> None:
    graph = random_graph(program)
    slow = replace(cluster("dgx-a100", 3), inside=Link(1e-7, 1e8))  # bytes weigh as much as work
    with pytest.MonkeyPatch.context() as patch:
        contracted = best_load(built(graph, 3, cluster=slow)[0])
        patch.setattr(groups, "view_pairs", lambda *_: [])
        free = best_load(built(graph, 3, cluster=slow)[0])
    assert contracted == pytest.approx(free)


def best_load(problem: Problem) -> float:
    """The least bottleneck over every assignment, stages allowed to stay empty."""
    loads = [
        evaluate(problem, Assignment(np.array(stages))).bottleneck_seconds
        for stages in itertools.product(range(problem.n_stages), repeat=problem.n)
        if _valid(problem, stages)
    ]
    return min(loads, default=0.0)


def _valid(problem: Problem, stages: Sequence[int]) -> bool:
    ordered = all(stages[a] <= stages[b] for a, b in problem.edges.tolist())
    return ordered and all(p in (-1, s) for p, s in zip(problem.pins, stages, strict=True))
