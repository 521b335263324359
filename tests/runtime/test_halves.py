"""The halves of a backward: neither does the other's work, and together they are the whole."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from stagecut.runtime.aliases import FreshAliases
from stagecut.runtime.halves import input_half
from tests.cases.models import Chain, Fan, Norms, linears


@dataclass
class Stage:
    """A module with one micro-batch: what it receives, and what it has anyway."""

    module: nn.Module
    received: list[torch.Tensor]
    inputs: tuple[torch.Tensor, ...] = ()


class Residual(nn.Module):
    """Skip connections, and a result besides the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = linears(3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        middle = x + self.steps[0](x).tanh()
        return middle, middle + self.steps[2](self.steps[1](middle).relu()) * x


class Repeated(nn.Module):
    """One convolution, one norm and one linear layer, each used at three depths."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.LayerNorm(6)
        self.linear = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.linear(self.norm(self.conv(x).tanh())).tanh()
        return x


class Normed(nn.Module):
    """A weight computed out of two others, and used at two depths."""

    def __init__(self) -> None:
        super().__init__()
        self.direction, self.size = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.ones(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.size * self.direction / self.direction.norm(dim=1, keepdim=True)
        return F.linear(F.linear(x, weight).tanh(), weight)


class Beside(nn.Module):
    """A branch of its own input, whose value is used at two depths."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.steps = nn.Sequential(*linears(2)), linears(2)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        when = self.embed(time)
        return self.steps[1](self.steps[0](x).tanh() * when) + when


class Scale(torch.autograd.Function):
    """Computes both gradients, whatever is asked for."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        x, scale = ctx.saved_tensors
        return torch.mul(grad, scale), (grad * x).sum(0)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step, self.scale = nn.Linear(8, 8), nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Scale.apply(self.step(x), self.scale).tanh()  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Queries that are weights: fused attention computes three gradients at once."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys, self.values = nn.Parameter(torch.randn(1, 2, 3, 8)), *linears(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        queries = self.queries.expand(len(x), -1, -1, -1)
        return F.scaled_dot_product_attention(queries, self.keys(x), self.values(x))


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (4, 8)))


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


STAGES: dict[str, Callable[[], Stage]] = {
    "mlp": lambda: Stage(Chain(3), [rows()]),
    "convolutions and batch norm": lambda: Stage(Norms(), [rows(2, 3, 6, 6)]),
    "transformer block": lambda: Stage(encoder(), [rows(2, 5, 8)]),
    "repeated layers": lambda: Stage(Repeated(), [rows(2, 3, 6, 6)]),
    "skips": lambda: Stage(Residual(), [rows()]),
    "fan": lambda: Stage(Fan(), [rows()]),
    "computed weight": lambda: Stage(Normed(), [rows()]),
    "embedding of its own input": lambda: Stage(Beside(), [rows()], (rows(),)),
    "nothing received": lambda: Stage(Chain(3), [], (rows(),)),
    "frozen": lambda: Stage(frozen(Chain(3)), [rows()]),
    "frozen below": lambda: Stage(nn.Sequential(frozen(Chain(2)), Chain(2)), [rows()]),
    "recurrent": lambda: Stage(nn.LSTM(8, 8, batch_first=True), [rows(2, 4, 8)]),
    "own function": lambda: Stage(Custom(), [rows()]),
    "prelu": lambda: Stage(nn.Sequential(nn.Linear(8, 8), nn.PReLU()), [rows()]),
    "learned queries": lambda: Stage(Attention(), [rows(4, 2, 5, 8)]),
}


class Calls(TorchDispatchMode):
    """Counts the calls of every op."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[str(func)] += 1
        return func(*args, **(kwargs or {}))


class Passed:
    """One backward in some way: its gradients, FLOPs and calls."""

    def __init__(self, stage: Stage, aliases: bool) -> None:
        for parameter in stage.module.parameters():
            parameter.grad = None
        self.module = stage.module
        self.leaves = [x.detach().requires_grad_() for x in stage.received]
        with FreshAliases(None) if aliases else contextlib.nullcontext():
            made = stage.module(*self.leaves, *stage.inputs)
        made = [x for x in torch.utils._pytree.tree_leaves(made) if x.requires_grad]
        self.roots = [(get_gradient_edge(x), torch.cos(x.detach())) for x in made]
        self.flops: list[int] = []
        self.calls: list[Counter[str]] = []

    def counted(self, work: Callable[[], Any]) -> Any:
        with FlopCounterMode(display=False) as flops, Calls() as calls:
            result = work()
        self.flops.append(flops.get_total_flops())
        self.calls.append(calls.count)
        return result

    def backward(self) -> None:
        edges, seeds = [e for e, _ in self.roots], [g for _, g in self.roots]
        self.counted(lambda: torch.autograd.backward(edges, seeds))
        self.received = [leaf.grad for leaf in self.leaves]

    def least(self) -> None:
        """The gradients of what was received, and nothing else."""
        edges, seeds = [e for e, _ in self.roots], [g for _, g in self.roots]
        if self.leaves:
            self.counted(lambda: torch.autograd.grad(edges, self.leaves, seeds))
        else:
            self.flops.append(0)

    def halves(self) -> None:
        found, half = self.counted(lambda: input_half(self.roots, self.leaves))
        self.early = self.gradients()
        self.counted(half.run)
        self.received = list(found)

    def gradients(self) -> dict[str, torch.Tensor]:
        named = self.module.named_parameters()
        return {name: p.grad.clone() for name, p in named if p.grad is not None}


@pytest.mark.parametrize("name", STAGES)
def test_the_halves_are_the_whole(name: str) -> None:
    torch.manual_seed(0)
    stage = STAGES[name]()
    whole, least, split = (Passed(stage, aliases) for aliases in (False, False, True))
    whole.backward()
    want = whole.gradients()
    stage.module.zero_grad()
    least.least()
    split.halves()
    assert split.early == {}
    torch.testing.assert_close(split.gradients(), want)
    torch.testing.assert_close(split.received, whole.received)
    assert sum(split.flops) == whole.flops[0] or not whole.flops[0]
    if name not in ("computed weight", "embedding of its own input", "learned queries"):
        assert split.flops[0] == least.flops[0]


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("recurrent", "aten.mkldnn_rnn_layer_backward.default"),
        ("own function", "aten.sum.dim_IntList"),
        ("prelu", "aten._prelu_kernel_backward.default"),
        ("learned queries", "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"),
    ],
)
def test_what_cannot_be_divided_runs_once(name: str, kernel: str) -> None:
    stage = STAGES[name]()
    whole, split = Passed(stage, False), Passed(stage, True)
    whole.backward()
    split.halves()
    calls = [count[kernel] for count in split.calls]
    assert sum(calls) == whole.calls[0][kernel] > 0


def test_a_batch_norm_computes_each_half_once() -> None:
    split = Passed(STAGES["convolutions and batch norm"](), True)
    split.halves()
    kernel = "aten.convolution_backward.default"
    assert [count[kernel] for count in split.calls] == [4, 4]


def test_a_gradient_that_nobody_sends_is_none() -> None:
    leaf, other = rows().requires_grad_(), rows().requires_grad_()
    result = leaf.tanh()
    found, half = input_half([(get_gradient_edge(result), torch.ones(4, 8))], [leaf, other])
    half.run()
    assert found[1] is None
    torch.testing.assert_close(found[0], 1 - result.detach() ** 2)


def test_hooks_of_weights_run_once() -> None:
    stage = STAGES["repeated layers"]()
    calls: Counter[str] = Counter()
    for name, parameter in stage.module.named_parameters():
        parameter.register_hook(lambda _, n=name: calls.update([n]))
    whole = Passed(stage, False)
    whole.backward()
    once = calls.copy()
    calls.clear()
    Passed(stage, True).halves()
    assert calls == once


def test_only_weights_used_twice_are_told_apart_later() -> None:
    module = Repeated()
    extra = nn.Linear(6, 6)
    with FreshAliases(None) as first:
        extra(module(rows(2, 3, 6, 6)))
    assert first.repeated == {id(p) for p in module.parameters()}
    with FreshAliases(first.repeated) as second:
        extra(module(rows(2, 3, 6, 6)))
    assert set(second.uses) == first.repeated


@pytest.mark.parametrize("restarts", [True, False])
def test_a_branch_that_leads_into_anothers_beginning(restarts: bool) -> None:
    """The recurrent bias is used before the state depends on the input, and after."""
    torch.manual_seed(0)
    cell, x = torch.nn.GRU(4, 4, batch_first=True), torch.randn(2, 3, 4, requires_grad=True)
    y = cell(x)[0]
    y.backward(torch.cos(y.detach()))
    want = {name: p.grad for name, p in cell.named_parameters()}
    cell.zero_grad()
    with FreshAliases(None) if restarts else contextlib.nullcontext():
        y = cell(x)[0]
    root = get_gradient_edge(y), torch.cos(y.detach())
    (found,), half = input_half([root], [x], restarts=restarts)
    half.run()
    torch.testing.assert_close(found, x.grad)
    torch.testing.assert_close({n: p.grad for n, p in cell.named_parameters()}, want)
