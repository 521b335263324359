"""The users of tied weights, for those who want each such weight held once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Literal

from stagecut.ir.errors import InfeasibleError
from stagecut.ir.graph import Graph, op_refs
from stagecut.passes.propagate import owned_weights
from stagecut.passes.replicated import replicated_ops

TiedWeights = Literal["replicate", "colocate"]
"""Held by every stage that uses them, their gradients summed; or all their users in one stage."""


def tied_users(graph: Graph) -> dict[str, frozenset[int]]:
    """The ops that use each parameter which several ops use, by the parameter's name."""
    free = replicated_ops(graph)
    parameters = {weight.name for weight in graph.weights if weight.kind == "parameter"}
    users: dict[str, set[int]] = defaultdict(set)
    for index, op in enumerate(graph.ops):
        if index not in free:
            names = {ref.name for ref in op_refs(op)}
            names.update(weight.name for _, weight in owned_weights(op, graph.weights))
            for name in names & parameters:
                users[name].add(index)
    return {name: frozenset(found) for name, found in users.items() if len(found) > 1}


def check_pins_of_tied(
    graph: Graph, together: Mapping[str, frozenset[int]], pin_of_op: tuple[int, ...]
) -> None:
    """Refuses pins that part the users of a weight which is to be held once.

    Raises:
        InfeasibleError: names each such weight, and where its users are pinned.
    """
    faults = []
    for name, users in together.items():
        first = {pin_of_op[op]: graph.ops[op] for op in sorted(users, reverse=True)}
        first.pop(-1, None)
        if len(first) > 1:
            places = " and ".join(
                f"{op.scope or op.name} in stage {stage}" for stage, op in sorted(first.items())
            )
            faults.append(f"{name} is used by {places}")
    if faults:
        raise InfeasibleError(
            f'tied="colocate" keeps the users of a tied weight in one stage, and they are pinned '
            f"apart: {'; '.join(faults)}. Pin them to one stage (what makes the outputs is in the "
            'last), or take tied="replicate"'
        )
