"""Everything a trace might leave behind on a model, and on torch."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.testing import assert_close

from stagecut.frontend import trace


def fingerprint(model: nn.Module) -> list[object]:
    """What the model is: modules, attributes, hooks, and which tensors in which version."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [
        (name, type(m), m.training, list(vars(m)), len(m._forward_hooks), len(m._forward_pre_hooks))
        for name, m in model.named_modules()
    ] + [(name, id(t), t._version, t.requires_grad, t.grad) for name, t in tensors]


def assert_left_as_it_was(model: nn.Module, inputs: dict[str, Any]) -> None:
    """Traces the model for training and for inference, and finds it as before."""
    before, state = fingerprint(model), copy.deepcopy(model.state_dict())
    generator = torch.get_rng_state()
    for training in (True, False):
        trace(model, (), inputs, training=training)
    assert fingerprint(model) == before
    assert_close(model.state_dict(), state, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), generator)
