"""Train and eval in one graph: flags that a trace freezes become a choice again.

`dropout(x, 0.1, True)`, traced while its module was training, reads
`dropout(x, 0.1, self.training)` in the generated stage. A module that the user had put in eval
mode (a frozen batch norm) keeps its constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import fx, nn
from torch.nn.modules.batchnorm import _NormBase

from stagecut.frontend import effects
from stagecut.ir.graph import ByMode

# The argument that a module computes from `self.training`.
_MODE_ARGUMENTS: Mapping[str, str] = MappingProxyType(
    {
        "aten::dropout": "train",
        "aten::dropout_": "train",
        "aten::feature_dropout": "train",
        "aten::feature_dropout_": "train",
        "aten::alpha_dropout": "train",
        "aten::alpha_dropout_": "train",
        "aten::feature_alpha_dropout": "train",
        "aten::batch_norm": "training",
        "aten::instance_norm": "use_input_stats",
        "aten::rrelu": "training",
        "aten::rrelu_": "training",
        "aten::lstm": "train",
        "aten::gru": "train",
        "aten::rnn_tanh": "train",
        "aten::rnn_relu": "train",
        "aten::scaled_dot_product_attention": "dropout_p",
    }
)

# Without running statistics, norms go by the batch in eval too.
_NORMS = frozenset({"aten::batch_norm", "aten::instance_norm"})


def mode_arguments(node: fx.Node, scope: str, model: nn.Module) -> dict[str, ByMode]:
    """The arguments of an op that depend on the mode, by their schema name."""
    op = str(getattr(getattr(node.target, "_schema", None), "name", ""))
    name = _MODE_ARGUMENTS.get(op)
    if name is None or not _trains(model, scope):
        return {}
    given: Any = effects.argument(node, name)
    if not given or (op in _NORMS and effects.argument(node, "running_mean") is None):
        return {}
    return {name: ByMode(given, 0.0 if isinstance(given, float) else False)}


def counts_batches(node: fx.Node, scope: str, model: nn.Module) -> bool:
    """Whether an op is a norm's own count of the batches it saw, which eval leaves alone."""
    if not _trains(model, scope) or not effects.mutated(node):
        return False
    try:
        module = model.get_submodule(scope)
    except AttributeError:
        return False
    name = str(getattr(getattr(node.target, "_schema", None), "name", ""))
    return isinstance(module, _NormBase) and name not in _MODE_ARGUMENTS


def _trains(model: nn.Module, scope: str) -> bool:
    try:
        return model.get_submodule(scope).training
    except AttributeError:
        # The scope of a slice of a Sequential is no submodule; the whole model's mode decides.
        return model.training
