"""Models of torch alone, for the habits of people who write their own."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from tests.zoo.entry import ROWS, Entry, Inputs, ids, mean_square

D = 12


class Translator(nn.Module):
    """nn.Transformer between embeddings tied to the output."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.body = nn.Transformer(16, 2, 2, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, source: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(written.shape[1])
        hidden = self.body(self.embed(source), self.embed(written), tgt_mask=mask)
        return self.head(hidden)


class LSTMTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, D)
        self.first = nn.LSTM(D, D, num_layers=2, batch_first=True, bidirectional=True)
        self.second = nn.LSTM(2 * D, D, batch_first=True)
        self.head = nn.Linear(D, 7)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.first(self.embed(tokens))
        hidden, (last, _) = self.second(hidden)
        return self.head(hidden + last[-1].unsqueeze(1))


class GRUSeries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.GRU(D, D, batch_first=True) for _ in range(3))
        self.head = nn.Linear(D, 1)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        for cell in self.cells:
            series = series + cell(series)[0]
        return self.head(series[:, -1])


class Block(nn.Module):
    """A residual block that is told the time step."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, width_in)
        self.first = nn.Conv2d(width_in, width_out, 3, padding=1)
        self.time = nn.Linear(16, width_out)
        self.second = nn.Conv2d(width_out, width_out, 3, padding=1)
        self.skip = nn.Conv2d(width_in, width_out, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        hidden = self.first(F.silu(self.norm(x))) + self.time(time)[:, :, None, None]
        return self.second(F.silu(hidden)) + self.skip(x)


class UNet(nn.Module):
    """Denoises an image at a time step; every skip crosses the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.down = nn.ModuleList([Block(4, 8), Block(8, 8)])
        self.middle = Block(8, 8)
        self.up = nn.ModuleList([Block(16, 8), Block(16, 4)])
        self.out = nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, image: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        frequency = torch.exp(torch.arange(8, device=step.device) * (-math.log(1e4) / 8))
        angle = step[:, None].float() * frequency
        time = torch.cat([angle.sin(), angle.cos()], dim=-1)
        hidden, skips = self.stem(image), []
        for block in self.down:
            hidden = block(hidden, time)
            skips.append(hidden)
            hidden = F.avg_pool2d(hidden, 2)
        hidden = self.middle(hidden, time)
        for block in self.up:
            hidden = F.interpolate(hidden, scale_factor=2.0)
            hidden = block(torch.cat([hidden, skips.pop()], dim=1), time)
        return self.out(hidden)


class DLRM(nn.Module):
    """Many embedding tables beside a small dense tower, joined by pairwise products."""

    def __init__(self, tables: int = 12) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(20 + i, 8, mode="sum") for i in range(tables))
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(inplace=True), nn.Linear(16, 8))
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(8 + pairs, 16), nn.ReLU(inplace=True), nn.Linear(16, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: torch.Tensor, sparse: dict[str, torch.Tensor]) -> torch.Tensor:
        low = self.bottom(dense)
        found = [table(sparse[f"t{i}"]) for i, table in enumerate(self.tables)]
        stacked = torch.stack([low, *found], dim=1)
        products = stacked @ stacked.transpose(1, 2)
        chosen = products[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([low, chosen], dim=1))).squeeze(-1)


class GraphNet(nn.Module):
    """Message passing over one graph that every row shares."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, D)
        self.messages = nn.ModuleList(nn.Linear(2 * D, D) for _ in range(3))
        self.updates = nn.ModuleList(nn.GRUCell(D, D) for _ in range(3))
        self.head = nn.Linear(D, 1)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        state = torch.tanh(self.embed(nodes))
        source, target = edges[0], edges[1]
        for message, update in zip(self.messages, self.updates, strict=True):
            pair = torch.cat([state[:, source], state[:, target]], dim=-1)
            total = torch.zeros_like(state).index_add(1, target, torch.relu(message(pair)))
            flat = update(total.flatten(0, 1), state.flatten(0, 1))
            state = flat.view_as(state)
        return self.head(state).squeeze(-1)


class Verdict(NamedTuple):
    real: torch.Tensor
    kind: torch.Tensor


class Discriminator(nn.Module):
    """Two heads over one trunk with spectral norm, as auxiliary-classifier GANs have."""

    def __init__(self) -> None:
        super().__init__()
        spectral = nn.utils.parametrizations.spectral_norm
        self.trunk = nn.Sequential(
            spectral(nn.Conv2d(3, 8, 4, 2, 1)), nn.LeakyReLU(0.2, inplace=True),
            spectral(nn.Conv2d(8, 16, 4, 2, 1)), nn.LeakyReLU(0.2, inplace=True),
            nn.Flatten(),
        )  # fmt: skip
        self.real, self.kind = nn.Linear(64, 1), nn.Linear(64, 5)

    def forward(self, image: torch.Tensor) -> Verdict:
        hidden = self.trunk(image)
        return Verdict(self.real(hidden).squeeze(-1), self.kind(hidden))


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 64)
        self.body = nn.Sequential(
            nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.ConvTranspose2d(16, 8, 4, 2, 1),
            nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.ConvTranspose2d(8, 3, 4, 2, 1),
        )  # fmt: skip

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.body(self.project(noise).view(-1, 16, 2, 2)))


class GAN(nn.Module):
    """A generator judged by a discriminator, trained through both."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = Generator(), Discriminator()

    def forward(self, noise: torch.Tensor, image: torch.Tensor) -> tuple[Verdict, Verdict]:
        return self.discriminator(self.generator(noise)), self.discriminator(image)


class Autoencoder(nn.Module):
    """A variational one, its noise an input."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 8))
        self.decode = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 20))

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> dict[str, torch.Tensor]:
        mean, log_variance = self.encode(x).chunk(2, dim=-1)
        drawn = mean + noise * torch.exp(0.5 * log_variance)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()
        return {"loss": F.mse_loss(self.decode(drawn), x) + divergence}


class Spectral(nn.Module):
    """Mixes along time in the frequency domain: complex tensors between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.ParameterList(torch.randn(5, D, dtype=torch.cfloat) for _ in range(3))
        self.linear = nn.ModuleList(nn.Linear(D, D) for _ in range(3))

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        for mix, linear in zip(self.mix, self.linear, strict=True):
            waves = torch.fft.rfft(series, dim=1) * mix
            series = series + torch.tanh(linear(torch.fft.irfft(waves, n=8, dim=1)))
        return series


class Siamese(nn.Module):
    """One encoder called twice; the loss is of both results."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(D, 16), nn.Tanh(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 8)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(left)) * self.encoder(right)


def seeded(size: int) -> torch.Tensor:
    return torch.randn(ROWS, size)


def dlrm() -> tuple[nn.Module, Inputs]:
    sparse = {f"t{i}": torch.randint(0, 20, (ROWS, 3)) for i in range(12)}
    return DLRM(), {"dense": seeded(5), "sparse": sparse}


def graph_net() -> tuple[nn.Module, Inputs]:
    return GraphNet(), {"nodes": torch.randn(ROWS, 6, 4), "edges": torch.randint(0, 6, (2, 10))}


def gan_loss(output: tuple[Verdict, Verdict]) -> torch.Tensor:
    fake, real = output
    return F.softplus(-fake.real).mean() + F.softplus(real.real).mean() + real.kind.square().mean()


def series(width: int = D) -> torch.Tensor:
    return torch.randn(ROWS, 8, width)


PLAIN = (
    Entry("transformer", lambda: (Translator(), {"source": ids(), "written": ids(6)}),
          mean_square(), why="nn.Transformer"),
    Entry("lstm", lambda: (LSTMTagger(), {"tokens": ids()}), mean_square(),
          why="two layers, both directions"),
    Entry("gru", lambda: (GRUSeries(), {"series": series()}), mean_square()),
    Entry("unet", lambda: (UNet(), {"image": torch.randn(ROWS, 3, 8, 8),
                                    "step": torch.randint(0, 100, (ROWS,))}), mean_square(),
          why="time step in, skips across"),
    Entry("dlrm", dlrm, mean_square(), why="many tables, inputs in a dict"),
    Entry("graph_net", graph_net, mean_square(), {"split": {"edges": None}},
          why="one graph for every row"),
    Entry("gan", lambda: (GAN(), {"noise": seeded(8), "image": torch.randn(ROWS, 3, 8, 8)}),
          gan_loss, why="two heads, spectral norm, a module called twice"),
    Entry("autoencoder", lambda: (Autoencoder(), {"x": seeded(20), "noise": seeded(4)})),
    Entry("spectral", lambda: (Spectral(), {"series": series()}), mean_square(),
          why="complex weights and activations"),
    Entry("siamese", lambda: (Siamese(), {"left": seeded(D), "right": seeded(D)}), mean_square(),
          why="a module called twice"),
)  # fmt: skip
