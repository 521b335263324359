"""The modules of a stage, named as shortly as they can be: `wte`, `h.0 … h.2`, `h.3.attn`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence


def module_names(
    scopes: Sequence[str], stages: Sequence[Sequence[int]], n_stages: int
) -> list[list[str]]:
    """The modules that each stage runs, in program order.

    A module that lies in the stage as a whole is named by its own path, whatever is inside it;
    of one that is cut, the parts. Numbered siblings in a row are given as `first … last`.
    `scopes` has for each op its module path, `stages` the stages that run it; an op that several
    run names no module.
    """
    alone = [
        (scope, where[0])
        for scope, where in zip(scopes, stages, strict=True)
        if len(where) == 1 and scope
    ]
    whole = _whole_modules(alone)
    named: list[dict[str, None]] = [{} for _ in range(n_stages)]
    for scope, stage in alone:
        named[stage][_shortest(scope, whole)] = None
    return [siblings_joined(list(names)) for names in named]


def _whole_modules(alone: Sequence[tuple[str, int]]) -> set[str]:
    where: dict[str, set[int]] = defaultdict(set)
    for scope, stage in dict.fromkeys(alone):
        for prefix in _prefixes(scope):
            where[prefix].add(stage)
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
