"""Backwards that are not the derivative of the forward: kept, by running their module as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from stagecut.frontend import trace
from stagecut.ir.errors import TraceError
from tests.codegen.running import assert_trains_alike

X = {"x": torch.randn(4, 6, generator=torch.Generator().manual_seed(0))}


class Round(torch.autograd.Function):
    """Straight through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Reverse(torch.autograd.Function):
    """Calls no op at all in its forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return -gradient


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.after(self.a(x) * 4) / 4)

    def after(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Rounds(Layer):
    def after(self, x: torch.Tensor) -> torch.Tensor:
        return Round.apply(x)


class Scales(Layer):
    """A hook on an activation."""

    def after(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient * 0.5)
        return x


class Descends(Layer):
    """Takes a gradient inside forward."""

    def after(self, x: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
        return x - 0.01 * gradient


class Maps(Layer):
    """Maps over a dimension, by a function that the trace cannot follow."""

    def after(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda column: column.softmax(0), 1, 1)(x)


class Ensembles(Layer):
    """Maps over weights, which leaves what cannot be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 6, 6))

    def after(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda w: torch.tanh(x @ w))(self.w).mean(0)


class Hooked(Layer):
    """A hook on the module's backward, and one on its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_full_backward_hook(lambda module, given, taken: (given[0] * 2,))
        self.register_forward_hook(lambda module, args, out: out * 3)


class Forwards(Layer):
    """A hook on the forward alone, which a trace keeps; it branches, so that it is one op."""

    def __init__(self) -> None:
        super().__init__()
        self.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
        self.register_forward_hook(lambda module, args, out: out * 3)

    def after(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Stack(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.last = Layer(), Layer()
        self.layers = nn.ModuleList(kind() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


KINDS = [Rounds, Scales, Descends, Maps, Ensembles, Hooked, Forwards]


@pytest.mark.parametrize("n_stages", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_the_models_own(kind: type[nn.Module], n_stages: int) -> None:
    model = Stack(kind)
    hooks = [len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules()]
    pipe = assert_trains_alike(model, X, n_stages, method="uniform")
    opaque = [op.target for op in pipe.plan.graph.ops if ":" in op.target]
    assert opaque == ["module:layers.0", "module:layers.1"]
    assert hooks == [len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules()]
    if kind is not Descends:  # which answers only where gradients are recorded
        assert_close(pipe(**X), model(**X))


def test_inference_needs_no_backward() -> None:
    assert not any(":" in op.target for op in trace(Stack(Rounds), (), X, training=False).graph.ops)


def test_what_does_not_train_needs_none() -> None:
    model = Stack(Rounds).requires_grad_(False)
    assert not any(":" in op.target for op in trace(model, (), X).graph.ops)


REFUSED = {
    "function": (Rounds, r"test_backwards.py:\d+: a trace would lose the backward of Round"),
    "hook": (Scales, r"test_backwards.py:\d+: a trace would lose the hook"),
    "gradient": (Descends, r"test_backwards.py:\d+: forward takes gradients itself"),
    "levels": (Ensembles, r"test_backwards.py:\d+: forward uses a torch.func transform"),
    "transform": (Maps, r"Maps cannot be traced: it makes a tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_in_the_models_own_forward_it_is_refused_with_its_line(name: str) -> None:
    kind, pattern = REFUSED[name]
    with pytest.raises(TraceError, match=pattern + r".*\n?.*a module of its own") as told:
        trace(kind(), (), X)
    assert len(str(told.value).splitlines()) < 5


def test_a_function_without_ops_is_not_lost_silently() -> None:
    class Reverses(Layer):
        def after(self, x: torch.Tensor) -> torch.Tensor:
            return Reverse.apply(x)

    with pytest.raises(TraceError, match="would lose the backward of Reverse"):
        trace(Reverses(), (), X)


def test_custom_operators_with_a_backward_are_kept() -> None:
    @torch.library.custom_op("stagecut_tests::seven", mutates_args=())
    def seven(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    seven.register_fake(torch.empty_like)
    seven.register_autograd(lambda ctx, gradient: gradient * 7)

    class Triples(Layer):
        def after(self, x: torch.Tensor) -> torch.Tensor:
            return seven(x)

    pipe = assert_trains_alike(Triples(), X, 2, method="uniform")
    assert any("seven" in op.target for op in pipe.plan.graph.ops)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_what_we_use_of_torchs_private_names_is_there() -> None:
    exported = torch.export.export(nn.Sequential(Ensembles()), (X["x"],), strict=False)
    modules = {getattr(n.target, "__module__", "") for n in exported.graph.nodes}
    assert any(str(module).startswith("torch._functorch.") for module in modules)
    assert nn.Module._call_impl.__code__.co_name == "_call_impl"
