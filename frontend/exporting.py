"""Runs torch.export and turns what it raises into errors for people."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stagecut.frontend.assigned import assigned_attributes
from stagecut.frontend.backwards import no_own_backwards, refuse_own_backward
from stagecut.frontend.checkpoints import marked_checkpoints
from stagecut.frontend.decisions import Recorder
from stagecut.frontend.example import Example
from stagecut.frontend.explaining import cannot_trace
from stagecut.frontend.generators import refuse_own_generator
from stagecut.frontend.guards import Guards, readable
from stagecut.frontend.hints import Lengths
from stagecut.frontend.keeping import kept
from stagecut.frontend.lost import (
    refuse_assigned_data,
    refuse_inference_mode,
    refuse_switched_weight,
)
from stagecut.frontend.records import registered_outputs, unknown_output
from stagecut.frontend.symbols import dim_of, most_of
from stagecut.frontend.trees import flatten
from stagecut.frontend.watching import Watching
from stagecut.ir.errors import TraceError
from stagecut.ir.types import SymbolicDim

_TALKERS = (
    "torch.export", "torch._export", "torch._dynamo", "torch._subclasses.fake_tensor",
    "torch.fx.experimental.symbolic_shapes",
)  # fmt: skip
_MANY_MODULES = 600
"""Above this, lengths stay as in the example: symbolic ones take a third longer to trace."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What torch.export made, and what it holds for."""

    program: torch.export.ExportedProgram
    least_rows: int
    most_rows: int | None
    """None: no limit."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is traced, and what it changed on itself meanwhile."""

    model: nn.Module
    example: Example
    recorder: Recorder | None
    changed: dict[str, None] = field(default_factory=dict)
    asked: Lengths = field(default_factory=Lengths)


def export(
    model: nn.Module, example: Example, *, lengths: bool = True, recorder: Recorder | None = None
) -> Exported:
    """The model's graph, sizes symbolic where the model allows it.

    Symbolic are the batch and, if `lengths`, the lengths of tokens and of series; other sizes are
    the example's. A `recorder` repeats the decisions that a run took by data.

    Raises:
        TraceError: with the user's file and line, the construct and what to do.
    """
    subject = _Subject(model, example, recorder)
    with assigned_attributes() as assigned:
        program, notes = _with_lengths(subject) if lengths else (None, ())
        if program is None:
            program = _export(subject, lengths=False)
    notes += tuple(
        f"forward changes {change}, and every step finds what was there before: write into a "
        "buffer (register_buffer) instead"
        for change in subject.changed
    )
    notes += tuple(
        f"forward assigns the tensor {name}, which is no buffer: stages keep the one from before; "
        "register it with register_buffer and write into it"
        for name in dict.fromkeys(assigned)
    )
    batched = [leaf for leaf, own in _leaves(example) if own]
    rows = batched[0].shape[0] if batched else 1
    guards = Guards.of(program, example.kwargs)
    least, most, guard = guards.rows(rows)
    if guard is not None:
        test = f"`{readable(guard)}`{guards.at(guard)}"
        notes += (f"traced for micro-batches of {least} to {most or 'any number of'} rows, because "
                  f"the model tests {test}{_by_len(subject.asked)}",)  # fmt: skip
    return Exported(program, least, most, notes)


def _by_len(asked: Lengths) -> str:
    if not asked.places:
        return ""
    return f" (len() fixes a size, at {', '.join(asked.places)}; shape[0] leaves it open)"


def _with_lengths(
    subject: _Subject,
) -> tuple[torch.export.ExportedProgram | None, tuple[str, ...]]:
    """The trace with symbolic lengths, or None where they have to be the example's, and why."""
    example = subject.example
    lengths = sorted({n for leaf, _ in _leaves(example) for n in _lengths(leaf).values() if n > 1})
    if not lengths:
        return None, ()
    n_modules = sum(1 for _ in subject.model.modules())
    if n_modules > _MANY_MODULES:
        shown = ", ".join(map(str, lengths))
        return None, (f"the lengths of the inputs are those of the example ({shown}): with "
                      f"{n_modules} modules, tracing others too takes long",)  # fmt: skip
    try:
        program = _export(subject, lengths=True)
    except TraceError as error:
        # It may be the lengths, or the model: the trace without them tells.
        program = _export(subject, lengths=False)
        where = [line.strip() for line in str(error).splitlines() if line.startswith("  at ")]
        return program, ("the lengths of the inputs are those of the example: tracing others "
                         f"failed {''.join(where)}".rstrip(),)  # fmt: skip
    limits = _limits(program)
    guards = Guards.of(program, example.kwargs)
    broken = guards.lengths_broken(limits)
    if broken is not None:
        return None, ("the lengths of the inputs are those of the example, because the model tests "
                      f"`{readable(broken)}`{guards.at(broken)}",)  # fmt: skip
    fixed = [f"{n}{guards.fixing(n)}" for n in lengths if n not in limits]
    if not fixed:
        return program, ()
    return program, (f"the model fixes lengths of its inputs: {', '.join(fixed)}",)


def _export(subject: _Subject, *, lengths: bool) -> torch.export.ExportedProgram:
    model, example, recorder = subject.model, subject.example, subject.recorder
    shapes: Any = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]
    for leaf, batched in _leaves(example):
        free = [0] * batched + (list(_lengths(leaf)) if lengths else [])
        if free:
            shapes[leaf] = dict.fromkeys(free, torch.export.Dim.AUTO)

    def attempt() -> torch.export.ExportedProgram:
        repeating = recorder.repeating() if recorder else contextlib.nullcontext()
        looks = [subject.asked.look, refuse_assigned_data, refuse_own_generator]
        if model.training:
            looks += [refuse_own_backward, refuse_inference_mode, refuse_switched_weight]
        with (
            _quiet(),
            kept(model, subject.changed),
            _named_inputs(model, example),
            no_own_backwards(model),
            marked_checkpoints() as regions,
            repeating,
            Watching(looks, regions),
            _default_device(example),
        ):
            return torch.export.export(
                model, example.args, example.kwargs, dynamic_shapes=shapes, strict=False
            )

    try:
        try:
            return attempt()
        except Exception as error:
            if not unknown_output(error):
                raise
            with registered_outputs(model):
                return attempt()
    except TraceError:
        raise
    except Exception as error:
        raise cannot_trace(model, error) from error


def _limits(program: torch.export.ExportedProgram) -> dict[int, tuple[int, int]]:
    """For each size that is symbolic in a dimension after 0, the least and the most it may be."""
    bounds = {str(symbol): found for symbol, found in program.range_constraints.items()}
    limits: dict[int, tuple[int, int]] = {}
    for node in program.graph.nodes:
        made = node.meta.get("val") if node.op == "placeholder" else None
        for dim in map(dim_of, made.shape[1:] if isinstance(made, torch.Tensor) else ()):
            if isinstance(dim, SymbolicDim) and dim.expression in bounds:
                low, high = limits.get(dim.hint, (2, 2**62))
                found = bounds[dim.expression]
                high = min(high, most_of(found) or high)
                limits[dim.hint] = max(low, int(found.lower)), high
    return limits


def _leaves(example: Example) -> list[tuple[Any, bool]]:
    return list(zip(flatten(example.kwargs)[0], example.batched, strict=True))


def _lengths(leaf: Any) -> dict[int, int]:
    """The dimensions of a leaf that are lengths: of tokens and masks, and of series of vectors."""
    if not isinstance(leaf, torch.Tensor):
        return {}
    if not leaf.is_floating_point() and not leaf.is_complex():
        return dict(list(enumerate(leaf.shape))[1:])
    return {1: leaf.shape[1]} if leaf.ndim == 3 else {}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Torch logs at length before it raises, and prints the graph so far.

    The exception has the same facts; what the model itself writes still reaches the user.
    """
    loggers = [logging.getLogger(name) for name in _TALKERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    printed, graph = io.StringIO(), ""
    try:
        with contextlib.redirect_stderr(printed):
            yield
    except Exception as error:
        graph = f"{getattr(error, 'partial_fx_graph', '')}\n"
        raise
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        sys.stderr.write(printed.getvalue().replace(graph, "") if graph else printed.getvalue())


@contextlib.contextmanager
def _named_inputs(model: nn.Module, example: Example) -> Iterator[None]:
    """torch.export does not take `**kwargs`: inside, forward names those of the example."""
    forward, had = model.forward, "forward" in vars(model)
    signature = inspect.signature(forward)
    declared = signature.parameters.values()
    own = [p for p in declared if p.kind is not inspect.Parameter.VAR_KEYWORD]
    caught = [n for n in example.kwargs if n not in {p.name for p in own}]
    if not caught:
        yield
        return

    def named(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    parameters = [*own, *(inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in caught)]
    named.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    model.forward = named
    try:
        yield
    finally:
        del model.forward
        if had:
            model.forward = forward


def _default_device(example: Example) -> contextlib.AbstractContextManager[object]:
    """Where the inputs are on the meta device, what forward makes without a device is too."""
    on_meta = any(isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf, _ in _leaves(example))
    return torch.device("meta") if on_meta else contextlib.nullcontext()
