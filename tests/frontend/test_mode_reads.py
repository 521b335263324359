"""Which code decides by `training`, found by reading it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from stagecut.frontend.mode_reads import mode_reads


class Harmless(nn.Module):
    gradient_checkpointing = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(x, 0.1, self.training)
        x = F.dropout(x, p=0.1, training=self.training)
        if self.gradient_checkpointing and self.training:
            x = x + 0
        return F.scaled_dot_product_attention(
            x, x, x, dropout_p=0.1 if self.training else 0.0
        ) + F.scaled_dot_product_attention(x, x, x, dropout_p=0.0 if not self.training else 0.1)


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            x = x + 1
        return x


class Scales(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (2.0 if self.training else 1.0)


class Hands(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return helped(x, self.training)


class Inherits(Branches):
    pass


class Sets(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.training = True
        return x


def helped(x: torch.Tensor, flag: bool) -> torch.Tensor:
    return x + flag


def test_known_uses_are_no_decision() -> None:
    layers = [nn.Dropout(), nn.BatchNorm1d(3), nn.LSTM(3, 3), nn.MultiheadAttention(4, 2)]
    assert mode_reads(nn.Sequential(Harmless(), Sets(), *layers)) == ()


def test_decisions_are_found_with_their_line() -> None:
    for kind in (Branches, Scales, Hands, Inherits):
        (place,) = mode_reads(nn.Sequential(kind()))
        file, line = place.split(":")
        with open(file) as text:
            assert "self.training" in text.read().splitlines()[int(line) - 1]


def test_torchs_own_modules_outside_the_known_layers_are_read() -> None:
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
    assert any("parametrizations.py" in place for place in mode_reads(model))


def test_code_without_a_file_counts_as_a_decision() -> None:
    made = type("Typed", (nn.Module,), {"__module__": "nowhere"})
    assert mode_reads(made()) == ("nowhere.Typed",)
