"""Trains a model split and unsplit, and compares everything.

A model is traced and costed once, and cut at each number of stages.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.testing import assert_close
from torch.utils import _pytree as pytree

import stagecut
from stagecut import api, pricing
from tests.zoo.entry import ROWS, Entry, Inputs

MICROBATCHES = 2
STEPS = 2
RATE = 0.05


def check(entry: Entry, stages: tuple[int, ...]) -> None:
    """Trains `STEPS` steps at each number of stages.

    Raises:
        AssertionError: a loss, gradient, parameter or buffer differs from the unsplit model's.
    """
    torch.manual_seed(0)
    model, inputs = entry.build()
    unsplit = copy.deepcopy(model)
    losses, gradients = train_unsplit(entry, unsplit, inputs)
    with traced_once():
        for n_stages in stages:
            split = copy.deepcopy(model)
            pipe = train_split(entry, split, inputs, n_stages, losses, gradients)
            _compare("state", pipe.state_dict(), unsplit.state_dict())
            _compare("buffer", dict(split.named_buffers()), dict(unsplit.named_buffers()))


def train_unsplit(
    entry: Entry, model: nn.Module, inputs: Inputs
) -> tuple[list[float], dict[str, torch.Tensor | None]]:
    """The losses of all steps and the gradients of the last, micro-batch after micro-batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for part in parts(inputs):
            output = model(**part)
            loss = (entry.loss(output) if entry.loss else output["loss"]) / MICROBATCHES
            loss.backward()
            total += loss.item()
        losses.append(total)
        gradients = _gradients(model.named_parameters())
        optimizer.step()
    return losses, gradients


def train_split(
    entry: Entry,
    model: nn.Module,
    inputs: Inputs,
    n_stages: int,
    losses: list[float],
    gradients: dict[str, torch.Tensor | None],
) -> stagecut.pipe.Pipeline:
    """The same steps in the local runtime, each compared with the unsplit model's."""
    plan = stagecut.partition(
        model, n_stages, example_kwargs=parts(inputs)[0], n_microbatches=MICROBATCHES,
        **entry.options,
    )  # fmt: skip
    assert len(plan.stages) == n_stages
    pipe = stagecut.pipeline(plan, model, loss_fn=entry.loss, runtime="local")
    optimizer = torch.optim.SGD(pipe.parameters(), lr=RATE)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = float(pipe.train_step(**inputs))
        assert_close(loss, losses[step], rtol=1e-5, atol=1e-6)
        got = _gradients(pipe.named_parameters())
        optimizer.step()
    _compare("gradient", got, gradients)
    return pipe


@contextmanager
def traced_once() -> Iterator[None]:
    """Inside, partition traces and costs a model only the first time it is asked to."""
    traced: list[Any] = []

    def trace(*args: Any, **kwargs: Any) -> Any:
        traced.append(traced[0] if traced else _trace(*args, **kwargs))
        return traced[0]

    def annotate(graph: Any, device: Any, *more: Any) -> Any:
        key = graph, device
        if key not in costed:
            costed[key] = _annotate(graph, device, *more)
        return costed[key]

    costed: dict[Any, Any] = {}
    _trace, _annotate = api.trace, pricing.annotate
    with mock.patch.object(api, "trace", trace), mock.patch.object(pricing, "annotate", annotate):
        yield


@functools.cache
def _halves() -> tuple[slice, ...]:
    size = ROWS // MICROBATCHES
    return tuple(slice(i * size, (i + 1) * size) for i in range(MICROBATCHES))


def parts(inputs: Inputs) -> list[Inputs]:
    def cut(leaf: Any, rows: slice) -> Any:
        batched = isinstance(leaf, torch.Tensor) and leaf.ndim and leaf.shape[0] == ROWS
        return leaf[rows] if batched else leaf

    return [pytree.tree_map(functools.partial(cut, rows=rows), inputs) for rows in _halves()]


def _gradients(named: Any) -> dict[str, torch.Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in named}


def _compare(kind: str, got: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(got) == set(expected), f"{kind} names differ: {set(got) ^ set(expected)}"
    for name, tensor in expected.items():
        found = got[name]
        if tensor is None or found is None:
            some = found if tensor is None else tensor
            assert some is None or not some.any(), f"{kind} {name} is {found}, expected {tensor}"
        else:
            assert_close(found, tensor, msg=lambda text, name=name: f"{kind} {name}: {text}")
