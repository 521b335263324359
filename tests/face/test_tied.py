"""Tied weights: where they are held, and what the plan says of the other way."""

from __future__ import annotations

import re

import torch
from torch import nn

import stagecut
from stagecut.ir.device import Cluster
from stagecut.ir.devices import cluster


class Language(nn.Module):
    """An embedding and a head that share one weight, layers between them."""

    def __init__(self, width: int = 64, vocabulary: int = 4096, tie: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(8))
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tie:
            self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x).tanh()
        return self.head(x)


class Twice(nn.Module):
    """One large weight used twice at the start."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.second.weight = self.first.weight
        self.rest = nn.ModuleList(nn.Linear(width, width) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.first(x).tanh()).tanh()
        for layer in self.rest:
            x = layer(x).tanh()
        return x


IDS = torch.zeros(2, 16, dtype=torch.long)


def slow_links(n: int) -> Cluster:
    return cluster("T4", n)


def test_a_tied_head_is_held_twice_and_the_plan_says_what_both_ways_cost() -> None:
    plan = stagecut.partition(Language(), 2, (IDS,), cluster=slow_links(2))
    (note,) = [note for note in plan.data.notes if "is tied" in note]
    assert note.startswith("embed.weight is tied: held by stages 0, 1, which costs 4.00 MiB more")
    synced = max(stage.sync_seconds for stage in plan.stages)
    micro = float(re.search(r"\(([\d.]+) (?:µs|ms) a micro-batch", note)[1])
    assert f"{micro:.3g}" in (f"{synced * 1e6:.3g}", f"{synced * 1e3:.3g}")
    assert re.search(r"In one stage, it would take along what runs .* (9\d\.\d|100\.0)%", note)
    assert note in " ".join(str(plan).split())


def test_a_weight_used_twice_in_a_row_stays_in_one_stage_and_says_what_two_would_cost() -> None:
    plan = stagecut.partition(Twice(), 4, (torch.zeros(2, 512),), cluster=slow_links(4))
    (note,) = [note for note in plan.data.notes if "is tied" in note]
    assert "used in stage 0 alone. Used in two, it would cost 4.00 MiB more memory" in note
    assert not any(stage.sync_seconds for stage in plan.stages)


def test_what_is_not_tied_or_small_is_not_mentioned() -> None:
    plan = stagecut.partition(Language(tie=False), 2, (IDS,))
    assert not any("is tied" in note for note in plan.data.notes)
