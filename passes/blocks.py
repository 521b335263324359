"""The repeated blocks of a model, by module path: the layers that recomputation takes as a whole.

A block is a module with a number in its name (`h.3`, `layer2.0`, `denselayer4`). Blocks may hold
numbered modules themselves: those are the blocks instead where they are nearly all of it and big
enough, as the layers of a ResNet's stages are, and the linear layers of an MLP are not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from stagecut.ir.graph import Op

_SHARE = 0.75
"""Of a block's time, what its numbered children must have to be the blocks themselves."""
_PRODUCTS = 2
"""Ops with FLOPs that a block must have on average, else it is joined with its siblings."""


def blocks(ops: Sequence[Op]) -> tuple[str, ...]:
    """For each op the path of its block, or of the first block of those it is joined with.

    Empty for an op in no block. Small siblings, as in a plain `nn.Sequential`, are joined: n of
    them to about √n blocks.
    """
    found = [_outermost(op.scope, 0) for op in ops]
    while deeper := _deeper(ops, found):
        found = [deeper.get(index, path) for index, path in enumerate(found)]
    return tuple(_joined(ops, found))


def _outermost(scope: str, start: int) -> str:
    """The shortest prefix of more than `start` components that ends in a number."""
    parts = scope.split(".") if scope else []
    for depth in range(start, len(parts)):
        if parts[depth][-1:].isdigit():
            return ".".join(parts[: depth + 1])
    return ""


def _deeper(ops: Sequence[Op], found: Sequence[str]) -> dict[int, str]:
    """The block inside its block of each op for which that is the better one."""
    families: dict[str, list[int]] = defaultdict(list)
    for index, path in enumerate(found):
        if path:
            families[_family(path)].append(index)
    better: dict[int, str] = {}
    for members in families.values():
        inner = {i: _outermost(ops[i].scope, found[i].count(".") + 1) for i in members}
        inside = {i: path for i, path in inner.items() if path}
        if (
            _seconds(ops, inside) >= _SHARE * _seconds(ops, members)
            and inside
            and _products(ops, inside) >= _PRODUCTS * len(set(inside.values()))
        ):
            better.update(inner)
    return better


def _joined(ops: Sequence[Op], found: Sequence[str]) -> list[str]:
    families: dict[str, list[str]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for op, path in zip(ops, found, strict=True):
        if path and path not in families[_family(path)]:
            families[_family(path)].append(path)
        counts[path] += _is_product(op)
    names: dict[str, str] = {"": ""}
    for paths in families.values():
        small = sum(counts[path] for path in paths) < _PRODUCTS * len(paths)
        length = max(2, round(len(paths) ** 0.5)) if small else 1
        names.update({path: paths[i - i % length] for i, path in enumerate(paths)})
    return [names[path] for path in found]


def _family(path: str) -> str:
    """What siblings have in common: the path without its last number."""
    return path.rstrip("0123456789")


def _seconds(ops: Sequence[Op], members: Sequence[int] | dict[int, str]) -> float:
    return sum(cost.forward.seconds for i in members if (cost := ops[i].cost))


def _products(ops: Sequence[Op], members: dict[int, str]) -> int:
    return sum(_is_product(ops[i]) for i in members)


def _is_product(op: Op) -> bool:
    return op.cost is not None and op.cost.forward.flops > 0
