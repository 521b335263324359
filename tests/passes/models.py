"""Small models whose costs the tests check, each with its inputs."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from stagecut.frontend import trace
from stagecut.ir.graph import Graph


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class ConvNet(nn.Module):
    """Convolutions (strided, grouped, transposed, 1-d), batch norm, pooling, in-place ops."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.norm = nn.BatchNorm2d(8)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.line = nn.Conv1d(6, 5, 3, padding=1)
        self.head = nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = F.relu(self.norm(self.grouped(x)) + x, inplace=True)
        x = self.line(self.up(x).flatten(2))
        return self.head(F.adaptive_avg_pool1d(x, 1).flatten(1))


class Block(nn.Module):
    """One transformer layer; attention through the fused kernel, or spelt out."""

    def __init__(self, fused: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.fused, self.dropout = fused, dropout
        self.embed = nn.Embedding(11, 16)
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = x + self.out(self._attend(self.norm1(x)))
        x = x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.dropout, self.training)
        return F.linear(x, self.embed.weight)  # tied

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = torch.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v
        return y.transpose(1, 2).flatten(2)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], **kwargs: Any) -> None:
        super().__init__()
        self.layer = kind(4, 6, batch_first=True, **kwargs)
        width = 6 * (2 if kwargs.get("bidirectional") else 1)
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0][:, -1])


class Frozen(nn.Module):
    """A frozen first layer, a frozen middle layer, and a branch that is detached."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.d = nn.Linear(8, 8)
        self.a.requires_grad_(False)
        self.c.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.b(torch.tanh(self.a(x))))
        with torch.no_grad():
            gate = torch.sigmoid(self.d(x))
        return self.c(x) * gate + x.detach()


def images(n: int = 4) -> torch.Tensor:
    return torch.randn(n, 3, 16, 16)


def tokens() -> torch.Tensor:
    return torch.randint(0, 11, (3, 7))


CASES: dict[str, tuple[Any, Any]] = {
    "mlp": (MLP, lambda: torch.randn(5, 8)),
    "conv": (ConvNet, images),
    "block": (lambda: Block(fused=False), tokens),
    "block fused": (lambda: Block(fused=True), tokens),
    "block dropout": (lambda: Block(fused=True, dropout=0.3), tokens),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda: torch.randn(3, 5, 4)),
    "lstm deep": (
        lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True),
        lambda: torch.randn(3, 5, 4),
    ),
    "gru": (lambda: Recurrent(nn.GRU), lambda: torch.randn(3, 5, 4)),
    "frozen": (Frozen, lambda: torch.randn(5, 8)),
}


def case(name: str) -> tuple[nn.Module, torch.Tensor, Graph]:
    """The model, its input, and its graph."""
    make, example = CASES[name]
    torch.manual_seed(0)
    model, x = make(), example()
    return model, x, graph_of(model, x)


def graph_of(model: nn.Module, *inputs: torch.Tensor, training: bool = True) -> Graph:
    """The model's graph as the frontend lowers it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # export warns of nn.LSTM's flat weights
        return trace(model, inputs, {}, training=training).graph
