"""The modules of a stage, named as shortly as they can be: `wte`, `h.0 … h.2`, `h.3.attn`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence


def module_names(scopes: Sequence[str], stages: Sequence[Sequence[int]], stage: int) -> list[str]:
    """The modules that a stage runs, in program order.

    A module that lies in the stage as a whole is named by its own path, whatever is inside it;
    of one that is cut, the parts. Numbered siblings in a row are given as `first … last`.
    `scopes` has for each op its module path, `stages` the stages that run it; an op that several
    run names no module.
    """
    whole = _whole_modules(scopes, stages)
    named = [
        _shortest(scope, whole)
        for scope, where in zip(scopes, stages, strict=True)
        if tuple(where) == (stage,) and scope
    ]
    return siblings_joined(list(dict.fromkeys(named)))


def _whole_modules(scopes: Sequence[str], stages: Sequence[Sequence[int]]) -> set[str]:
    where: dict[str, set[int]] = defaultdict(set)
    for scope, found in zip(scopes, stages, strict=True):
        if len(found) == 1:
            for prefix in _prefixes(scope):
                where[prefix].update(found)
    return {prefix for prefix, found in where.items() if len(found) == 1}


def _prefixes(scope: str) -> list[str]:
    parts = scope.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _shortest(scope: str, whole: set[str]) -> str:
    return next((prefix for prefix in _prefixes(scope) if prefix in whole), scope)


def siblings_joined(names: Sequence[str]) -> list[str]:
    """Consecutive numbered siblings as one: `h.0 … h.2`."""
    found: list[list[str]] = []
    for name in names:
        if found and _follows(found[-1][-1], name):
            found[-1].append(name)
        else:
            found.append([name])
    return [run[0] if len(run) == 1 else f"{run[0]} … {run[-1]}" for run in found]


def _follows(before: str, name: str) -> bool:
    parent, _, number = before.rpartition(".")
    other, _, following = name.rpartition(".")
    numbers = number.isdigit() and following.isdigit()
    return parent == other and numbers and int(following) == int(number) + 1
