"""A pipeline that runs in one process asks nothing of the others, whoever they are."""

from __future__ import annotations

import torch
from torch import nn

import stagecut
from tests.support.ranks import results, run_ranks


def alone(rank: int) -> None:
    if rank:
        return
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
    x = torch.randn(8, 4)
    plan = stagecut.partition(model, 2, (x,), n_microbatches=2)
    pipe = stagecut.pipeline(plan, model, loss_fn=lambda out: out.square().mean(), runtime="local")
    pipe.train_step(x)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    expected = nn.utils.get_total_norm(gradients)
    torch.testing.assert_close(pipe.clip_grad_norm_(1e9), expected)


def test_a_local_pipeline_on_one_rank_of_two() -> None:
    results(run_ranks(2, alone))
