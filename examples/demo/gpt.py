"""A small GPT in ordinary PyTorch; nothing in it knows that it will be cut."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY = 128
"""ASCII."""


class Block(nn.Module):
    """Causal self-attention and an MLP, each added to its input."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, width] to the same."""
        rows, tokens, width = x.shape
        heads = self.qkv(self.norm_1(x)).view(rows, tokens, 3, self.n_heads, width // self.n_heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(rows, tokens, width))
        return x + self.mlp(self.norm_2(x))


class SmallGPT(nn.Module):
    """A language model of characters."""

    def __init__(self, width: int = 128, n_layers: int = 6, n_heads: int = 4, context: int = 64):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, n_heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Characters [batch, tokens] to logits [batch, tokens, VOCABULARY]."""
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def next_character_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of the next character, in nats."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())
