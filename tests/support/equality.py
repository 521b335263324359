"""The unsplit model as the reference, and the comparison with a pipeline that trained beside it.

The reference runs the same micro-batches one after the other, each loss weighted by its rows: the
same arithmetic in the same order, so that float32 results are compared tightly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

Loss = Callable[..., torch.Tensor]


@dataclass
class Case:
    """A model with one whole batch."""

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    loss: Loss | None = None
    target: Any = None


@dataclass
class Trained:
    """Where some training steps led."""

    losses: list[float]
    gradients: dict[str, torch.Tensor | None]
    state: dict[str, torch.Tensor]


def cut(value: Any, n: int) -> list[Any]:
    """Any nest of tensors in n parts along dimension 0; what has other rows is repeated."""
    leaves, tree = pytree.tree_flatten(value)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim]
    rows = max(tensor.shape[0] for tensor in tensors)
    columns = [
        leaf.tensor_split(n)
        if isinstance(leaf, torch.Tensor) and leaf.ndim and leaf.shape[0] == rows
        else (leaf,) * n
        for leaf in leaves
    ]
    return [pytree.tree_unflatten([column[i] for column in columns], tree) for i in range(n)]


def rows_of(value: Any) -> int:
    return max(
        x.shape[0] for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor) and x.ndim
    )


def optimizer_of(parameters: Iterator[nn.Parameter], name: str = "sgd") -> torch.optim.Optimizer:
    # A stage without trainable parameters gets an optimizer of one of no consequence.
    trainable = [p for p in parameters if p.requires_grad] or [nn.Parameter(torch.zeros(()))]
    if name == "adamw":
        return torch.optim.AdamW(trainable, lr=1e-2)
    return torch.optim.SGD(trainable, lr=0.05)


def train_unsplit(case: Case, n_microbatches: int, steps: int, optimizer: str = "sgd") -> Trained:
    """Trains a copy of the case's model."""
    model = copy.deepcopy(case.model)
    parts = cut((case.args, case.kwargs, case.target), n_microbatches)
    rows = [rows_of(part[:2]) for part in parts]
    stepper = optimizer_of(model.parameters(), optimizer)
    losses: list[float] = []
    gradients: dict[str, torch.Tensor | None] = {}
    for _ in range(steps):
        stepper.zero_grad()
        total = 0.0
        for (args, kwargs, target), n in zip(parts, rows, strict=True):
            loss = loss_of(case, model(*args, **kwargs), target) * (n / sum(rows))
            if loss.requires_grad:
                loss.backward()
            total += loss.item()
        losses.append(total)
        gradients = {
            k: None if p.grad is None else p.grad.clone() for k, p in model.named_parameters()
        }
        stepper.step()
    return Trained(losses, gradients, dict(model.state_dict()))


def loss_of(case: Case, output: Any, target: Any) -> torch.Tensor:
    if case.loss is None:
        return output["loss"] if isinstance(output, Mapping) else output.loss
    return case.loss(output) if target is None else case.loss(output, target)


def train_pipeline(case: Case, pipe: Any, steps: int, optimizer: str = "sgd") -> Trained:
    """Trains a pipeline on the same batches."""
    stepper = optimizer_of(pipe.parameters(), optimizer)
    extra = {} if case.target is None else {"target": case.target}
    losses: list[float] = []
    gradients: dict[str, torch.Tensor | None] = {}
    for _ in range(steps):
        stepper.zero_grad()
        losses.append(float(pipe.train_step(*case.args, **extra, **case.kwargs)))
        gradients = {
            k: None if p.grad is None else p.grad.clone() for k, p in pipe.named_parameters()
        }
        stepper.step()
    return Trained(losses, gradients, pipe.state_dict())


def assert_trained_alike(got: Trained, want: Trained, *, whole: bool = True) -> None:
    """Losses, every gradient and the state agree; `whole` where the pipeline has all stages."""
    torch.testing.assert_close(got.losses, want.losses, rtol=1e-5, atol=1e-6)
    if whole:
        assert set(got.gradients) == set(want.gradients)
        assert set(got.state) == set(want.state)
    for name, gradient in got.gradients.items():
        expected = want.gradients[name]
        if expected is None:
            assert gradient is None or not gradient.any(), f"{name} got a gradient"
        else:
            assert gradient is not None, f"{name} got no gradient"
            torch.testing.assert_close(gradient, expected, msg=lambda m, n=name: f"{n}.grad: {m}")
    for name, value in got.state.items():
        torch.testing.assert_close(value, want.state[name], msg=lambda m, n=name: f"{n}: {m}")


def assert_answers_alike(case: Case, pipe: Any, n_microbatches: int) -> None:
    """The pipeline gives what the model gives in eval mode, in the model's own container."""
    model = copy.deepcopy(case.model).eval()
    with torch.no_grad():
        parts = [model(*a, **k) for a, k in cut((case.args, case.kwargs), n_microbatches)]
    columns = zip(*(pytree.tree_leaves(part) for part in parts), strict=True)
    joined = [torch.cat(c) if isinstance(c[0], torch.Tensor) else c[0] for c in columns]
    want = pytree.tree_unflatten(joined, pytree.tree_structure(parts[0]))
    got = pipe.eval()(*case.args, **case.kwargs)
    assert type(got) is type(want)
    torch.testing.assert_close(got, want)
