"""Runs a Graph on real tensors, op by op: the oracle for every transformation of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from stagecut.ir.graph import Arg, Autocast, Context, GradMode, Graph, Mode, Op, Ref, WeightRef
from stagecut.passes.resolve import function_of, torch_value

CPU = torch.device("cpu")


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """The model's own tensors by every name they have."""
    named = dict(model.named_parameters(remove_duplicate=False))
    return {**named, **dict(model.named_buffers(remove_duplicate=False))}


def interpret(
    graph: Graph,
    inputs: Sequence[Any],
    weights: Mapping[str, torch.Tensor],
    opaque: Mapping[str, nn.Module] | None = None,
    training: bool = True,
) -> list[Any]:
    """The graph's outputs, given its inputs in order (constant leaves too) and its weights."""
    values = {
        item.value.name: given
        for item, given in zip(graph.inputs, inputs, strict=True)
        if item.value is not None
    }

    idle = {v.name for op in graph.ops if not _runs(op, training) for v in op.results}

    def lookup(ref: Ref | WeightRef) -> Any:
        if isinstance(ref, WeightRef):
            return weights[ref.name]
        return None if ref.name in idle else values[ref.name]

    def value(arg: Arg) -> Any:
        return torch_value(arg, lookup, training=training, device=CPU)

    for op in graph.ops:
        if _runs(op, training):
            values.update(_run(op, value, opaque or {}))
    return [value(output) for output in graph.outputs]


def _runs(op: Op, training: bool) -> bool:
    return all(c.training == training for c in op.context if isinstance(c, Mode))


def _run(op: Op, value: Any, opaque: Mapping[str, nn.Module]) -> dict[str, Any]:
    with ExitStack() as stack:
        for context in op.context:
            _enter(context, stack)
        args, kwargs = [value(a) for a in op.args], {k: value(a) for k, a in op.kwargs}
        out = function_of(op.target, opaque)(*args, **kwargs)
    made = list(out) if op.sequence else [out]
    return {result.name: item for result, item in zip(op.results, made, strict=False)}


def _enter(context: Context, stack: ExitStack) -> None:
    match context:
        case GradMode(enabled):
            stack.enter_context(torch.set_grad_enabled(enabled))
        case Autocast(dtype, enabled):
            stack.enter_context(torch.autocast("cpu", getattr(torch, dtype), enabled=enabled))
