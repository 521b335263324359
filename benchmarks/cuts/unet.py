"""A U-Net of the size that latent diffusion models have: skips from every block to its mirror.

Residual blocks and self-attention after Rombach et al., "High-Resolution Image Synthesis with
Latent Diffusion Models" (CVPR 2022), without cross-attention.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    """Two convolutions with the time added between them; shapes [b, c, h, w], [b, t]."""

    def __init__(self, given: int, width: int, time: int) -> None:
        super().__init__()
        self.norm_in, self.norm_out = nn.GroupNorm(32, given), nn.GroupNorm(32, width)
        self.conv_in = nn.Conv2d(given, width, 3, padding=1)
        self.conv_out = nn.Conv2d(width, width, 3, padding=1)
        self.time = nn.Linear(time, width)
        self.short = nn.Conv2d(given, width, 1) if given != width else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        hidden = self.conv_in(F.silu(self.norm_in(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.short(x) + self.conv_out(F.silu(self.norm_out(hidden)))


class Attention(nn.Module):
    """Self-attention over the pixels, then a feed-forward part."""

    def __init__(self, width: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_wide = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        pixels = x.flatten(2).transpose(1, 2)
        parts = self.project(self.norm(pixels)).view(b, h * w, 3, self.heads, c // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(query, key, value).transpose(1, 2)
        pixels = pixels + self.out(seen.reshape(b, h * w, c))
        pixels = pixels + self.narrow(F.gelu(self.wide(self.norm_wide(pixels))))
        return pixels.transpose(1, 2).view(b, c, h, w)


class Block(nn.Module):
    """A residual block, with attention where the resolution allows it."""

    def __init__(self, given: int, width: int, time: int, attends: bool) -> None:
        super().__init__()
        self.residual = Residual(given, width, time)
        self.attention = Attention(width) if attends else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.attention(self.residual(x, time))
        return out


class UNet(nn.Module):
    """Noise in a latent image [b, 4, h, w] at a time [b, width]."""

    def __init__(self, width: int, levels: tuple[int, ...] = (1, 2, 4, 4), depth: int = 2) -> None:
        super().__init__()
        time = 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        self.shrink, self.grow = nn.ModuleList(), nn.ModuleList()
        skips, given = [width], width
        for level, factor in enumerate(levels):
            for _ in range(depth):
                self.down.append(Block(given, factor * width, time, level < len(levels) - 1))
                given = factor * width
                skips.append(given)
            if level < len(levels) - 1:
                self.shrink.append(nn.Conv2d(given, given, 3, stride=2, padding=1))
                skips.append(given)
        self.middle = Block(given, given, time, True)
        for level, factor in reversed(list(enumerate(levels))):
            for _ in range(depth + 1):
                self.up.append(
                    Block(given + skips.pop(), factor * width, time, level < len(levels) - 1)
                )
                given = factor * width
            if level:
                self.grow.append(nn.Conv2d(given, given, 3, padding=1))
        self.norm, self.last = nn.GroupNorm(32, given), nn.Conv2d(given, 4, 3, padding=1)
        self.depth = depth

    def forward(self, latent: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        when = self.time(time)
        x = self.first(latent)
        skips = [x]
        for index, block in enumerate(self.down):
            x = block(x, when)
            skips.append(x)
            if index % self.depth == self.depth - 1 and index // self.depth < len(self.shrink):
                x = self.shrink[index // self.depth](x)
                skips.append(x)
        x = self.middle(x, when)
        for index, block in enumerate(self.up):
            x = block(torch.cat([x, skips.pop()], 1), when)
            level = index // (self.depth + 1)
            if index % (self.depth + 1) == self.depth and level < len(self.grow):
                x = self.grow[level](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        out: torch.Tensor = self.last(F.silu(self.norm(x)))
        return out
