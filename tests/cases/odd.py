"""Models as people really write them: what tracers, cutters and senders stumble over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.cases.models import WIDTH, linears


def leaves(output: Any) -> Iterator[torch.Tensor]:
    """The floating tensors of any output, complex ones as two."""
    if isinstance(output, torch.Tensor):
        real = torch.view_as_real(output) if output.is_complex() else output
        if real.is_floating_point():
            yield real
    elif is_dataclass(output):
        for item in fields(output):
            yield from leaves(getattr(output, item.name))
    elif isinstance(output, dict | list | tuple):
        for item in output.values() if isinstance(output, dict) else output:
            yield from leaves(item)


def all_squares(output: Any) -> torch.Tensor:
    """A loss that every output has a part in."""
    return torch.stack([leaf.float().square().mean() for leaf in leaves(output)]).sum()


class Kinds(nn.Module):
    """Complex, boolean, integer, empty and zero-dimensional tensors, made early and used late."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = linears(4)
        self.filter = nn.Parameter(torch.randn(WIDTH // 2 + 1, dtype=torch.cfloat))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        spectrum = torch.fft.rfft(self.steps[0](x)) * self.filter
        keep, order = x > 0, x.argsort(-1)
        scale, empty = spectrum.abs().mean(), x[:, :0]
        for step in self.steps[1:]:
            x = torch.tanh(step(x))
        x = torch.where(keep, x, torch.fft.irfft(spectrum, n=WIDTH)).gather(1, order)
        return {"x": torch.cat([x * scale, empty], 1), "spectrum": spectrum, "keep": keep}


class Auxiliary(nn.Module):
    """A loss of every layer, summed; outputs made early, in nested containers."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = linears(5)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        extra, states = x.new_zeros(()), {}
        for i, step in enumerate(self.steps):
            x = torch.tanh(step(x))
            extra = extra + x.abs().mean() * 0.1
            states[f"state {i}"] = {"x": x, "more": (x.sum(-1), [None, i])}
        return {"x": x, "extra": extra, "states": states}


class Casts(nn.Module):
    """Autocast over everything, with an island of full precision and one of another mode."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = linears(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            x = torch.tanh(self.steps[1](torch.tanh(self.steps[0](x))))
            with torch.autocast("cpu", enabled=False):
                x = self.steps[2](x.float())
            x = self.steps[3](x)
        return x.float()


class Hooks(nn.Module):
    """Hooks of the user's before and after a module."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = linears(4)
        self.steps[1].register_forward_hook(lambda module, args, output: output * 2)
        self.steps[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = torch.tanh(step(x))
        return x


class Round(torch.autograd.Function):
    """Rounds, and lets the gradient through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Rounds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Round.apply(self.a(x) * 8) / 8


class Quantized(nn.Module):
    """Layers with a backward of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(Rounds() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = torch.tanh(step(x))
        return x


class Teacher(nn.Module):
    """Frozen parameters that forward itself moves towards the trained ones."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.slow = linears(2), linears(2)
        self.slow.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.steps[1](torch.tanh(self.steps[0](x))))
        with torch.no_grad():
            for own, slow in zip(self.steps.parameters(), self.slow.parameters(), strict=True):
                slow.mul_(0.9).add_(own, alpha=0.1)
            target = torch.tanh(self.slow[1](torch.tanh(self.slow[0](x))))
        return y - target


class Queue(nn.Module):
    """Averages, counters and a queue of past values, written by slices under no_grad."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = linears(4)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("past", torch.zeros(6, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.steps[0](x))
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            self.count += 1
            self.past[:2] = x[:2]
        for step in self.steps[1:]:
            x = torch.tanh(step(x))
        return x + self.mean


class Selects(nn.Module):
    """Rows chosen by values: sizes that nobody knows before."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = linears(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.steps[0](x))
        chosen = torch.tanh(self.steps[1](x[x[:, 0] > 0]))
        return self.steps[2](x) + chosen.sum(0)


class Returned(nn.Module):
    """The named tuples that torch's own functions return."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = linears(3)

    def forward(self, x: torch.Tensor) -> tuple[Any, ...]:
        x = torch.tanh(self.steps[0](x))
        return torch.max(x, dim=1), torch.topk(self.steps[1](x), 2), self.steps[2](x)


class Keywords(nn.Module):
    """Inputs by keyword alone, one of them undeclared, and a switch by a string."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleDict({"a": nn.Linear(WIDTH, WIDTH), "b-c": nn.Linear(WIDTH, WIDTH)})
        self.scales = nn.ParameterDict({"a": torch.ones(WIDTH), "b-c": torch.ones(WIDTH)})
        self.more = nn.ParameterList(torch.eye(WIDTH) for _ in range(2))

    def forward(self, *, x: torch.Tensor, kind: str = "a", **more: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.steps[kind](x) + more["shift"]) * self.scales[kind]
        for weight in self.more:
            x = torch.tanh(x @ weight)
        return x


class Routed(nn.Module):
    """Experts that run only where a row chose them: a loop with a branch on data."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 3), linears(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.gate(x).softmax(-1)
        chosen, out = shares.argmax(-1), torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            mine = chosen == i
            if mine.any():
                out[mine] = expert(x[mine]) * shares[mine, i, None]
        return out


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(WIDTH, WIDTH), nn.ModuleList(Routed() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return x


class Asserts(nn.Module):
    """Checks by values in the model's own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = linears(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.isnan(x).any():
            raise ValueError("not a number")
        for step in self.steps:
            x = torch.tanh(step(x))
            assert torch.isfinite(x).all()
        return x


@dataclass
class Batch:
    x: torch.Tensor
    mask: torch.Tensor | None = None
    scale: float = 0.5


@dataclass
class Answer:
    logits: torch.Tensor
    inner: Batch


class Structured(nn.Module):
    """Dataclasses in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = linears(3)

    def forward(self, batch: Batch) -> Answer:
        x = torch.tanh(self.steps[0](batch.x)) * batch.scale
        return Answer(self.steps[2](torch.tanh(self.steps[1](x))), Batch(x, scale=2.0))


class Packs(nn.Module):
    """Sequences of several lengths, packed."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(
                x, lengths.cpu(), batch_first=True, enforce_sorted=False
            )
            out, _ = self.lstm(packed)
            padded, _ = nn.utils.rnn.pad_packed_sequence(
                out, batch_first=True, total_length=x.size(1)
            )
            return padded

    def __init__(self) -> None:
        super().__init__()
        self.first, self.reader, self.last = nn.Linear(WIDTH, WIDTH), self.Reader(), linears(1)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.last[0](self.reader(torch.tanh(self.first(x)), lengths))


class Precisions(nn.Module):
    """Layers of three precisions."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = linears(3)
        self.steps[1].double()
        self.steps[2].bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.steps[0](x)).double()
        return self.steps[2](torch.tanh(self.steps[1](x)).bfloat16())


class Gives(nn.Module):
    """Weights, buffers, inputs and constants among the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = linears(3)
        self.register_buffer("table", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = x
        for step in self.steps:
            y = torch.tanh(step(y))
        given = {"x": x, "y": y, "again": y, "table": self.table, "flag": True, "size": 2.5}
        return {**given, "weight": self.steps[0].weight.mean(), "none": None}


class Loops(nn.Module):
    """A recurrent cell in a Python loop over the length, and functional calls of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, states = x.new_zeros(x.size(0), WIDTH), []
        for t in range(x.size(1)):
            h = self.cell(x[:, t], h)
            states.append(h)
        half = {name: weight * 0.5 for name, weight in self.out.named_parameters()}
        stacked = torch.stack(states, 1)
        return torch.func.functional_call(self.out, half, (stacked,)) + F.silu(stacked)


class Noise(nn.Module):
    """Drops by a generator of its own."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(seed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.empty_like(x).bernoulli_(0.8, generator=self.own) / 0.8


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = linears(4)
        self.noises = nn.ModuleList(Noise(seed) for seed in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step, noise in zip(self.steps, self.noises, strict=True):
            x = noise(torch.tanh(step(x)))
        return x


class HalfFrozen(nn.Module):
    """Switches its weight off whenever it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step.weight.requires_grad_(False)
        return torch.tanh(self.step(x))


class Freezes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.steps = HalfFrozen(), linears(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for step in self.steps:
            x = torch.tanh(step(x))
        return x
