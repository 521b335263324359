"""Cuts small models, runs them, and compares with the model itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.testing import assert_close
from torch.utils import _pytree as pytree

import stagecut
from stagecut.pipe import Pipeline

Loss = Callable[[Any], torch.Tensor]


def mean_square(output: Any) -> torch.Tensor:
    leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    real = [torch.view_as_real(t) if t.is_complex() else t for t in leaves]
    return torch.stack([t.square().mean() for t in real if t.is_floating_point()]).sum()


def pipe_of(
    model: nn.Module, inputs: dict[str, Any], n_stages: int = 2, loss: Loss = mean_square,
    **options: Any,
) -> Pipeline:  # fmt: skip
    plan = stagecut.partition(
        model, n_stages, example_kwargs=inputs, **{"n_microbatches": 1, **options}
    )
    return stagecut.pipeline(plan, model, loss_fn=loss, runtime="local")


def assert_trains_alike(
    model: nn.Module, inputs: dict[str, Any], n_stages: int = 2, loss: Loss = mean_square,
    **options: Any,
) -> Pipeline:  # fmt: skip
    """One step, in one micro-batch, gives the model's own loss, gradients and buffers."""
    torch.manual_seed(0)
    unsplit = copy.deepcopy(model)
    expected = loss(unsplit(**inputs))
    expected.backward()
    pipe = pipe_of(model, inputs, n_stages, loss, **options)
    assert_close(pipe.train_step(**inputs), expected.detach())
    gradients = {name: p.grad for name, p in pipe.named_parameters()}
    for name, parameter in unsplit.named_parameters():
        if parameter.grad is None:
            assert gradients[name] is None or not gradients[name].any(), name
        else:
            assert_close(gradients[name], parameter.grad, msg=lambda m, n=name: f"{n}: {m}")
    for name, buffer in unsplit.named_buffers():
        assert_close(dict(model.named_buffers())[name], buffer)
    return pipe


def sources(pipe: Pipeline) -> str:
    return "\n".join(stage.source for stage in pipe.program.stages)
