"""The small models, each one trap."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

WIDTH = 8


def linears(n: int, width: int = WIDTH) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(width, width) for _ in range(n))


class Chain(nn.Module):
    """Layers in a row, in a number that the stages need not divide."""

    def __init__(self, depth: int = 6) -> None:
        super().__init__()
        self.steps = linears(depth)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = step(x).tanh()
        return x


class Masked(nn.Module):
    """An input that every stage needs."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = linears(5)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = torch.relu(step(x)) * mask
        return x


class OwnLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Chain(5)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.body(x), labels)


class Optional(nn.Module):
    """None, numbers and flags among the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = linears(3)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 2, last: bool = True
    ) -> torch.Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x)) * scale))
        x = x if mask is None else x * mask
        return self.third(x) if last else x


class Trees(nn.Module):
    """Nested containers in and out, with None and numbers among the leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = linears(3)

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        early = torch.tanh(self.first(batch["x"]))
        x = torch.tanh(self.second(early)) * batch["scales"][0]
        return {"logits": self.third(x), "more": (early, [None, 3]), "none": None}


class InPlace(nn.Module):
    """One base that every layer updates in place, none of whose readers saves it."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = linears(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 1.0
        for step in self.steps:
            x += torch.tanh(step(x.clone()))
            x.mul_(0.5).add_(0.1)
        return x


class LongSkip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = linears(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x = torch.tanh(self.steps[0](x))
        for step in self.steps[1:]:
            x = torch.tanh(step(x))
        return x * first + first


class Residual(nn.Module):
    """Blocks whose inner width is larger than what passes between them."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(3))
        self.narrow = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for wide, narrow in zip(self.wide, self.narrow, strict=True):
            x = x + narrow(torch.relu(wide(x)))
        return x


class Fan(nn.Module):
    """One early value that each later layer uses: its gradient is a sum over several stages."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.steps = nn.Linear(WIDTH, WIDTH), linears(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shared = x = torch.tanh(self.first(x))
        for step in self.steps:
            x = torch.tanh(step(x) + shared)
        return x


class Integers(nn.Module):
    """Token ids and a boolean mask, made early and needed late."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.steps = nn.Embedding(16, WIDTH), linears(3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        keep, shifted = (ids > 3).unsqueeze(-1), ids + 1
        x = self.embed(ids)
        for step in self.steps:
            x = torch.tanh(step(x))
        return x * keep + shifted.unsqueeze(-1).float()


class Strides(nn.Module):
    """Views, chunks and expanded tensors where the cut may fall."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).view(-1, 2, 4).transpose(1, 2)
        left, right = x.chunk(2, dim=-1)
        joined = (left.expand(-1, 4, 2) + right).transpose(1, 2).reshape(-1, 2, 4)
        return self.second(joined)


class Tied(nn.Module):
    """The first and the last layer are one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(16, WIDTH), Chain(4)
        self.head = nn.Linear(WIDTH, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(ids)))


class SharedLayer(nn.Module):
    """A module called at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.body = nn.Linear(WIDTH, WIDTH), Chain(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shared(self.body(torch.tanh(self.shared(x))))


class Buffers(nn.Module):
    """A buffer that state_dict does not have, a plain tensor attribute and a literal."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("position", torch.arange(WIDTH).float(), persistent=False)
        self.register_buffer("scale", torch.full((WIDTH,), 0.5))
        self.offset = torch.linspace(0, 1, WIDTH)
        self.first, self.second = linears(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x + self.position)) * self.scale
        return self.second(x * self.position + self.offset) * torch.tensor(2.0)


class Norms(nn.Module):
    """Batch norm writes buffers; the ReLUs work in place."""

    def __init__(self) -> None:
        super().__init__()
        blocks = (
            layer
            for _ in range(4)
            for layer in (nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True))
        )
        self.net = nn.Sequential(*blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class Frozen(nn.Module):
    """The first layers do not train, and one trains beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.beside = linears(4)
        self.first.requires_grad_(False)
        self.second.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.third(x + self.beside(x))


class Unused(nn.Module):
    """Parameters that the forward never reads, and an output that the loss does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.spare, self.side = linears(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tanh(self.first(x))
        return torch.tanh(self.second(x)), self.side(x)


class WithoutGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.fourth = linears(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        with torch.no_grad():
            scale = torch.sigmoid(self.second(x))
        return self.fourth(torch.tanh(self.third(x * scale)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lower = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.upper = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, (_, cell) = self.lower(x)
        x, last = self.upper(x)
        return self.head(x) + (last[-1] * cell[-1]).unsqueeze(1)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Conv2d(3, 4, 3, padding=1)
        self.down2 = nn.Conv2d(4, 8, 3, padding=1)
        self.middle = nn.Conv2d(8, 8, 3, padding=1)
        self.up2 = nn.Conv2d(16, 4, 3, padding=1)
        self.up1 = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = torch.relu(self.down1(x))
        low = torch.relu(self.down2(F.max_pool2d(high, 2)))
        x = torch.relu(self.middle(F.max_pool2d(low, 2)))
        x = torch.cat([F.interpolate(x, scale_factor=2), low], 1)
        x = F.interpolate(torch.relu(self.up2(x)), scale_factor=2)
        return self.up1(torch.cat([x, high], 1))
