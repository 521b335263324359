"""Calls that do in eval what they do in training, because the flag they take is no module's mode.

    F.dropout(x, 0.1)                     drops in eval too
    F.batch_norm(x, m, v, training=True)  normalizes by the batch in eval too

Modules hand `self.training` on, which modes.py makes a choice of; these calls need a trace in eval.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import MappingProxyType

_HOME = "torch.nn.functional"

# The flag's name and place in functions of torch.nn.functional, and what it is where left out.
_FLAGS: Mapping[str, tuple[str, int, bool]] = MappingProxyType(
    {
        "dropout": ("training", 2, True),
        "dropout1d": ("training", 2, True),
        "dropout2d": ("training", 2, True),
        "dropout3d": ("training", 2, True),
        "alpha_dropout": ("training", 2, False),
        "feature_alpha_dropout": ("training", 2, False),
        "batch_norm": ("training", 5, False),
        "instance_norm": ("use_input_stats", 5, True),
        "rrelu": ("training", 3, False),
        "multi_head_attention_forward": ("training", 14, True),
        "scaled_dot_product_attention": ("dropout_p", 4, False),
    }
)


def fixed_flags(root: ast.AST, tree: ast.Module) -> Iterator[int]:
    """Lines under `root`, in the file `tree`, of calls whose flag is on whatever the mode."""
    functions = _functions(tree)
    for node in ast.walk(root):
        if isinstance(node, ast.Call):
            name = functions.get(ast.unparse(node.func))
            if name is not None and _is_on(node, *_FLAGS[name]):
                yield node.lineno


def _functions(tree: ast.Module) -> dict[str, str]:
    """What a file may call those functions, by the words in the call: `F.dropout`, `drop`."""
    found = {f"{home}.{name}": name for name in _FLAGS for home in (_HOME, "nn.functional")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            homes = [item.asname for item in node.names if item.name == _HOME and item.asname]
        elif isinstance(node, ast.ImportFrom) and node.module == "torch.nn":
            homes = [item.asname or item.name for item in node.names if item.name == "functional"]
        elif isinstance(node, ast.ImportFrom) and node.module == _HOME:
            found |= {i.asname or i.name: i.name for i in node.names if i.name in _FLAGS}
            continue
        else:
            continue
        found |= {f"{home}.{name}": name for name in _FLAGS for home in homes}
    return found


def _is_on(call: ast.Call, flag: str, position: int, default: bool) -> bool:
    """Whether a flag is a constant or an attribute other than `training`; names are trusted."""
    named = [item.value for item in call.keywords if item.arg == flag]
    passed_on = any(item.arg is None for item in call.keywords)
    placed = call.args[position : position + 1]
    if not (named or placed):
        return default and not passed_on and not any(isinstance(a, ast.Starred) for a in call.args)
    given = (named or placed)[0]
    if isinstance(given, ast.Constant):
        return bool(given.value)
    return isinstance(given, ast.Attribute) and given.attr != "training"
