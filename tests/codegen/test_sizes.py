"""Sizes: read off a tensor of the stage where it has one, told where it has none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import stagecut
from stagecut.ir.types import ScalarType
from tests.codegen.running import assert_trains_alike, mean_square, pipe_of

IDS = {"ids": torch.randint(0, 9, (4, 5))}


class Positions(nn.Module):
    """Every layer asks for the length; the last works on something that has lost it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows, length = ids.shape
        h = self.embed(ids)
        for layer in self.layers[:2]:
            here = torch.arange(length, device=ids.device).float()[:, None] / length
            h = torch.tanh(layer(h) + here)
        pooled = h.sum(dim=1) / length
        return self.layers[2](pooled) * (length + 1) + torch.full((rows, 1), 0.5) * length


class Derived(nn.Module):
    """Halves, products, powers and lists of a length, used where the length itself is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows, length = ids.shape
        h = torch.tanh(self.layers[0](self.embed(ids))) / length**0.5
        h = h.view(rows, length, 2, 3).transpose(1, 2).reshape(rows, 2 * length, 3)
        h = self.layers[1](h.reshape(rows, length, 6)[:, : length // 2 + 1]).sum(1)
        h = self.layers[2](torch.tanh(h)) * (length // 2) + torch.sym_float(length)
        return torch.cat([h.unsqueeze(1), h.new_zeros(rows, length - length // 2, 6)], 1)


@pytest.mark.parametrize("n_stages", [1, 2, 3, 4])
def test_numbers_made_of_sizes(n_stages: int) -> None:
    model = Derived()
    pipe = assert_trains_alike(model, IDS, n_stages, method="uniform")
    for rows, length in ((1, 5), (3, 4), (6, 11)):
        ids = torch.randint(0, 9, (rows, length))
        torch.testing.assert_close(pipe.train_step(ids), mean_square(model(ids)).detach())


@pytest.mark.parametrize("n_stages", [1, 2, 3, 4])
def test_every_stage_knows_its_sizes(n_stages: int) -> None:
    model = Positions()
    pipe = assert_trains_alike(model, IDS, n_stages, method="uniform")
    for rows, length in ((1, 5), (3, 2), (6, 11)):
        model.zero_grad()
        ids = torch.randint(0, 9, (rows, length))
        torch.testing.assert_close(pipe.train_step(ids), mean_square(model(ids)).detach())


def test_a_size_without_a_tensor_is_told() -> None:
    pipe = pipe_of(Positions(), IDS, 4, method="uniform")
    told = [p for p in pipe.program.stages[-1].inputs if isinstance(p.type, ScalarType)]
    assert told and all(port.stage is None for port in told)
    assert ".size(" in pipe.program.stages[0].source


def test_weights_on_the_meta_device_take_any_inputs() -> None:
    with torch.device("meta"):
        model = Positions()
    plan = stagecut.partition(model, 2, example_kwargs=IDS)
    real = Positions()
    pipe = stagecut.pipeline(plan, real, loss_fn=mean_square, runtime="local")
    torch.testing.assert_close(pipe.train_step(**IDS), mean_square(real(**IDS)).detach())
