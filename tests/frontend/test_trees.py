"""Nested inputs and outputs: written down and read back, and torch's private pytree behind it."""

from __future__ import annotations

import json
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stagecut.frontend.records import register_dataclasses
from stagecut.frontend.trees import (
    dump_tree,
    flatten,
    keyword_leaves,
    keywords,
    leaf_paths,
    load_tree,
    map_leaves,
    unflatten,
)
from stagecut.ir.errors import ArgumentError, TraceError


class Point(NamedTuple):
    x: Any
    y: Any


nests = st.recursive(
    st.integers(0, 9),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3),
        st.tuples(inner, inner).map(lambda pair: Point(*pair)),
    ),
    max_leaves=8,
)


@given(nests)
def test_a_tree_survives_being_written_down(value: Any) -> None:
    leaves, tree = flatten(value)
    text = dump_tree(tree)
    assert json.loads(text) is None or text == dump_tree(load_tree(text))
    again = unflatten(leaves, load_tree(text))
    assert again == value and type(again) is type(value)


def test_containers_of_other_kinds() -> None:
    value = {"a": OrderedDict(b=[1, None]), "c": torch.Size([2, 3])}
    leaves, tree = flatten(value)
    again = unflatten(leaves, load_tree(dump_tree(tree)))
    assert again == value and type(again["a"]) is OrderedDict


def test_what_torch_itself_returns_keeps_its_class() -> None:
    value = {"max": torch.ones(2, 3).max(dim=1), "top": torch.ones(3).topk(2)}
    leaves, tree = flatten(value)
    again = unflatten(leaves, load_tree(dump_tree(tree)))
    assert type(again["max"]) is torch.return_types.max and again["top"].indices is leaves[3]


def test_a_named_tuple_that_is_not_imported_here_gets_a_twin() -> None:
    made = namedtuple("Gone", ["p", "q"])
    made.__module__ = "a.module.nobody.has"
    again = unflatten([1, 2], load_tree(dump_tree(flatten(made(1, 2))[1])))
    assert type(again).__name__ == "Gone" and again._fields == ("p", "q") and again == (1, 2)


def test_a_model_output_of_transformers_keeps_its_class() -> None:
    from transformers.modeling_outputs import BaseModelOutput

    leaves, tree = flatten(BaseModelOutput(last_hidden_state=torch.ones(2)))
    again = unflatten(leaves, load_tree(dump_tree(tree)))
    assert type(again) is BaseModelOutput and again.hidden_states is None


@dataclass
class Pair:
    x: Any
    y: Any = None


def test_a_dataclass_keeps_its_class_and_one_not_imported_here_gets_a_twin() -> None:
    register_dataclasses({"pair": [Pair(1, Pair(2))]})
    leaves, tree = flatten(Pair(1, Pair(2)))
    text = dump_tree(tree)
    assert leaves == [1, 2] and unflatten([3, 4], load_tree(text)) == Pair(3, Pair(4))
    twin = unflatten([3, 4], load_tree(text.replace(__name__, "a.module.nobody.has")))
    assert type(twin) is not Pair and (type(twin).__name__, twin.x, twin.y.y) == ("Pair", 3, None)


def test_an_unregistered_container_is_refused_with_the_remedy() -> None:
    class Bag(dict):
        pass

    from torch.utils import _pytree as pytree

    pytree.register_pytree_node(Bag, lambda b: (list(b.values()), list(b)), lambda v, c: Bag())
    with pytest.raises(TraceError, match="register_dataclass"):
        dump_tree(flatten(Bag(a=1))[1])


def test_paths_are_what_the_user_writes() -> None:
    value = {"batch": {"x": 1, "scales": [2, 3]}, "flag": True}
    assert leaf_paths(value) == ["batch['x']", "batch['scales'][0]", "batch['scales'][1]", "flag"]


def test_leaves_come_in_the_traced_order_whatever_the_callers() -> None:
    _, tree = flatten({"x": 1, "y": [2, 3]})
    assert keyword_leaves(tree, ["x", "y[0]", "y[1]"], {"y": [20, 30], "x": 10}) == [10, 20, 30]
    assert keywords(dump_tree(tree)) == ["x", "y"]


def test_another_nesting_is_refused_by_name() -> None:
    _, tree = flatten({"x": {"a": 1}})
    with pytest.raises(ArgumentError, match=r"missing: x\['a'\]; not in the example: x\['b'\]"):
        keyword_leaves(tree, ["x['a']"], {"x": {"b": 1}})


def test_map_leaves_keeps_containers() -> None:
    assert map_leaves(lambda n: n + 1, {"a": Point(1, [2])}) == {"a": Point(2, [3])}


def test_what_we_use_of_torchs_private_pytree_is_there() -> None:
    from torch.utils import _pytree as pytree

    leaves, tree = pytree.tree_flatten({"a": [1, (2, None)]})
    assert leaves == [1, 2, None]
    assert tree.type is dict and tree.context == ["a"] and len(tree.children()) == 1
    assert pytree.treespec_leaf().is_leaf()
    assert pytree.treespec_loads(pytree.treespec_dumps(tree)) == tree
    assert pytree.tree_flatten(Point(1, 2))[1].type is namedtuple
    assert pytree.tree_flatten(Point(1, 2))[1].context is Point
