"""What an op does besides computing: from its schema, and a table of what schemas do not say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

# Ops that return their input itself, or a view of it, depending on strides, dtypes or flags.
MAY_ALIAS = frozenset(
    {
        "aten::reshape", "aten::contiguous", "aten::to", "aten::flatten", "aten::chunk",
        "aten::type_as", "aten::expand_as", "aten::view_as", "aten::movedim", "aten::swapaxes",
        "aten::broadcast_to", "aten::unflatten", "aten::dropout", "aten::feature_dropout",
        "aten::alpha_dropout", "aten::feature_alpha_dropout", "aten::tensor_split",
        "aten::matrix_H", "aten::mT", "aten::squeeze", "aten::reshape_as", "aten::ravel",
        "aten::split", "aten::unsafe_chunk", "aten::hsplit", "aten::vsplit", "aten::dsplit",
        "aten::meshgrid", "aten::atleast_1d", "aten::atleast_2d", "aten::atleast_3d",
        "aten::broadcast_tensors", "aten::numpy_T", "aten::resolve_conj", "aten::resolve_neg",
        "aten::real", "aten::imag", "aten::float_power", "aten::pad", "aten::narrow",
        "aten::positive", "aten::lift", "aten::conj", "aten::adjoint", "aten::matrix_power",
    }
)  # fmt: skip


def mutated(node: fx.Node) -> list[fx.Node]:
    """The argument nodes that an op writes."""
    schema = getattr(node.target, "_schema", None)
    found = [] if schema is None else _marked(schema, node, lambda info: info.is_write)
    found += _statistics(schema, node)
    return list(dict.fromkeys(found))


def _statistics(schema: Any, node: fx.Node) -> list[fx.Node]:
    find = _RUNNING_STATISTICS.get(_name(schema))
    return [] if find is None else find(node)


def aliased(node: fx.Node) -> list[fx.Node]:
    """The argument nodes whose storage an op's results may share."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return []
    if _name(schema) in MAY_ALIAS:
        return _nodes(node.args[:1])
    returned = {name for r in schema.returns if r.alias_info for name in _sets(r.alias_info)}
    # `(Tensor(a -> *) self) -> Tensor(a)[]`: views in a list.
    return _marked(schema, node, lambda info: bool(({"*"} | returned) & _sets(info)))


def returns_what_it_writes(node: fx.Node) -> bool:
    """Whether an op's one result is the one tensor that it writes, as `add_` returns `self`."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or len(schema.returns) != 1:
        return False
    info = schema.returns[0].alias_info
    return info is not None and info.is_write and len(mutated(node)) == 1


def draws(node: fx.Node) -> bool:
    """Whether an op draws random numbers, as it is called here."""
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded not in tags:
        return False
    probability, flag = _PROBABILITY.get(_name(getattr(node.target, "_schema", None)), (None, None))
    if probability is None:
        return True
    drops = bool(argument(node, probability, 0.0))
    trains = flag is None or bool(argument(node, flag, False))
    return drops and trains


def argument(node: fx.Node, name: str, default: Any = None) -> Any:
    """The argument of an op called `name` in its schema, as this call gives it."""
    if name in node.kwargs:
        return node.kwargs[name]
    for position, declared in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if declared.name == name:
            if position < len(node.args):
                return node.args[position]
            return declared.default_value if declared.has_default_value() else default
    return default


def _name(schema: Any) -> str:
    return "" if schema is None else str(schema.name)


def _sets(info: Any) -> set[str]:
    return set(info.before_set) | set(info.after_set)


def _nodes(values: Sequence[Any]) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.node.map_arg(list(values), lambda n: found.append(n))
    return found


def _marked(schema: Any, node: fx.Node, wanted: Callable[[Any], bool]) -> list[fx.Node]:
    found: list[fx.Node] = []
    for position, declared in enumerate(schema.arguments):
        if declared.alias_info is None or not wanted(declared.alias_info):
            continue
        given = node.kwargs.get(declared.name)
        if given is None and position < len(node.args):
            given = node.args[position]
        found += _nodes([given])
    return found


def _batch_norm_statistics(node: fx.Node) -> list[fx.Node]:
    training = argument(node, "training", argument(node, "use_input_stats", False))
    if not training:
        return []
    return _nodes([argument(node, "running_mean"), argument(node, "running_var")])


# Not in the schemas, and `_version` does not move either.
_RUNNING_STATISTICS: Mapping[str, Callable[[fx.Node], list[fx.Node]]] = MappingProxyType(
    {
        "aten::batch_norm": _batch_norm_statistics,
        "aten::_batch_norm_impl_index": _batch_norm_statistics,
        "aten::cudnn_batch_norm": _batch_norm_statistics,
        "aten::instance_norm": _batch_norm_statistics,
    }
)

# (probability, training flag) of ops that draw only where both say so.
_PROBABILITY: Mapping[str, tuple[str | None, str | None]] = MappingProxyType(
    {
        "aten::dropout": ("p", "train"),
        "aten::dropout_": ("p", "train"),
        "aten::feature_dropout": ("p", "train"),
        "aten::feature_dropout_": ("p", "train"),
        "aten::alpha_dropout": ("p", "train"),
        "aten::alpha_dropout_": ("p", "train"),
        "aten::feature_alpha_dropout": ("p", "train"),
        "aten::native_dropout": ("p", "train"),
        "aten::scaled_dot_product_attention": ("dropout_p", None),
        "aten::rrelu": ("training", None),
        "aten::rrelu_": ("training", None),
        "aten::lstm": ("dropout", "train"),
        "aten::gru": ("dropout", "train"),
        "aten::rnn_tanh": ("dropout", "train"),
        "aten::rnn_relu": ("dropout", "train"),
    }
)
