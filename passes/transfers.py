"""Which values cross between stages, each once for every stage that reads it."""

from __future__ import annotations

from collections.abc import Sequence

from stagecut.ir.graph import Graph, Value
from stagecut.ir.plan import Transfer
from stagecut.ir.types import TensorType
from stagecut.passes.users import Users


def transfers(
    graph: Graph, stages: Sequence[Sequence[int]], training: bool
) -> tuple[Transfer, ...]:
    """Every transfer of one micro-batch; the model's outputs are read on the last stage.

    `stages` has for each op the stages that run it; what several run does not cross.
    """
    users = Users.of(graph)
    last = max((stage for where in stages for stage in where), default=0)
    found: list[Transfer] = []
    for where, op in zip(stages, graph.ops, strict=True):
        if len(where) != 1:
            continue
        for value in op.results:
            readers = {s for r in users.readers.get(value.name, ()) for s in stages[r]}
            if value.name in users.outputs:
                readers.add(last)
            found.extend(
                _transfer(value, where[0], reader, training)
                for reader in sorted(readers - {where[0]})
            )
    return tuple(found)


def _transfer(value: Value, source: int, destination: int, training: bool) -> Transfer:
    n_bytes = value.type.hint_bytes if isinstance(value.type, TensorType) else 0
    gradient = n_bytes if training and value.requires_grad else 0
    return Transfer(value.name, source, destination, float(n_bytes), float(gradient))
