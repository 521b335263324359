"""Runs of ops that are recomputed in the backward: each becomes a function for torch's checkpoint.

def recompute_0(x):                                     # made here and used later: returned
    h = F.linear(x, self.mlp.a.weight)
    y = torch.tanh(h)
    return (y,)
y, = checkpoint(recompute_0, x, use_reentrant=False)    # used there and made before: passed
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stagecut.ir.graph import Op, Recompute, reads
from stagecut.ir.types import ScalarType


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive ops of a stage: those of one recomputed region, or of none."""

    start: int
    stop: int
    """Positions among the stage's ops."""
    group: int | None
    """None: not recomputed."""
    inputs: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


def group_of(op: Op) -> int | None:
    """The recomputed region an op belongs to."""
    return next((c.group for c in op.context if isinstance(c, Recompute)), None)


def runs(ops: Sequence[Op], returned: frozenset[str]) -> Iterator[Run]:
    """All of a stage's ops as runs; `returned` are the values that the stage returns.

    Sizes computed between the ops of a region do not part it.
    """
    bounds = list(_bounds(ops))
    last = {name: position for position, op in enumerate(ops) for name in reads(op)}
    for start, stop, group in bounds:
        if group is None:
            yield Run(start, stop, None)
            continue
        made = [value.name for op in ops[start:stop] for value in op.results]
        used = dict.fromkeys(name for op in ops[start:stop] for name in reads(op))
        inputs = tuple(name for name in used if name not in made)
        results = tuple(n for n in made if last.get(n, -1) >= stop or n in returned)
        yield Run(start, stop, group, inputs, results)


def _bounds(ops: Sequence[Op]) -> Iterator[tuple[int, int, int | None]]:
    start, group = 0, None
    for position, op in enumerate(ops):
        own = group_of(op)
        if own == group or (group is not None and _is_size(op) and _resumes(ops, position, group)):
            continue
        if position > start:
            yield start, position, group
        start, group = position, own
    if ops:
        yield start, len(ops), group


def _resumes(ops: Sequence[Op], position: int, group: int) -> bool:
    """Whether only sizes stand between here and the next op of the region."""
    rest = (op for op in ops[position:] if not _is_size(op))
    following = next(rest, None)
    return following is not None and group_of(following) == group


def _is_size(op: Op) -> bool:
    return bool(op.results) and all(isinstance(v.type, ScalarType) for v in op.results)
