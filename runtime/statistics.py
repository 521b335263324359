"""Norms over the batch: from one value a channel there is nothing to normalize, and torch raises.

A micro-batch may have fewer rows than the batch has; that is told before a step begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stagecut.ir.errors import ArgumentError
from stagecut.ir.expression import symbols_of
from stagecut.ir.graph import ByMode, Graph, Op, Ref
from stagecut.ir.types import SymbolicDim, TensorType, Type
from stagecut.runtime.microbatches import MicroBatch

_TARGET = "aten.batch_norm.default"
_TRAINING = 5
"""The place of the flag among its arguments."""


@dataclass(frozen=True, slots=True)
class BatchNorm:
    """A norm over the batch."""

    place: str
    """Its module and the user's `file:line`."""
    type: TensorType
    """Of what it normalizes."""
    eval_too: bool
    """Whether it goes by the batch in eval mode too."""


def batch_norms(graph: Graph) -> tuple[BatchNorm, ...]:
    """The norms that go by the batch in training."""
    inputs = (item.value for item in graph.inputs if item.value is not None)
    types = {value.name: value.type for value in inputs}
    types |= {value.name: value.type for op in graph.ops for value in op.results}
    return tuple(norm for op in graph.ops for norm in _norm(op, types))


def check_values(
    norms: Sequence[BatchNorm], microbatches: Sequence[MicroBatch], *, training: bool
) -> None:
    """Returns if every norm has two values a channel or more, in each micro-batch.

    Raises:
        ArgumentError: names the norm, the micro-batch and its rows, and how many would do.
    """
    least = min(microbatches, key=lambda microbatch: microbatch.rows)
    for norm in norms:
        known = {s for dim in norm.type.shape if isinstance(dim, SymbolicDim)
                 for s in symbols_of(dim.expression)} <= least.symbols.keys()  # fmt: skip
        if not (known and (training or norm.eval_too)):
            continue
        sizes = norm.type.sizes(least.symbols)
        if math.prod(sizes) == sizes[1]:
            rows = sum(microbatch.rows for microbatch in microbatches)
            raise ArgumentError(
                f"micro-batch {least.index} has {_plural(least.rows)} of the batch's {rows}, which "
                f"leaves {norm.place} one value a channel to normalize by (its input is "
                f"{list(sizes)}). {_remedy(rows, len(microbatches))}"
            )


def _norm(op: Op, types: dict[str, Type]) -> Iterator[BatchNorm]:
    if op.target != _TARGET or not isinstance(op.args[0], Ref):
        return
    flag, kind = op.args[_TRAINING], types[op.args[0].name]
    trains, eval_too = (flag.train, flag.eval) if isinstance(flag, ByMode) else (flag, flag)
    if trains and isinstance(kind, TensorType):
        named = f'"{op.scope}"' if op.scope else "the model"
        place = f"{named} ({op.source})" if op.source else named
        yield BatchNorm(place, kind, bool(eval_too))


def _remedy(rows: int, n_microbatches: int) -> str:
    fewer = min(rows // 2, n_microbatches - 1)
    more = f"Give the step {2 * n_microbatches} rows or more"
    return f"{more}, or pipeline(..., n_microbatches={fewer})" if fewer else more


def _plural(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows} rows"
