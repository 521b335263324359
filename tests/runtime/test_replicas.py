"""Two stages times two replicas train as the unsplit model does on the whole batch."""

from __future__ import annotations

import pytest
import torch

import stagecut
from stagecut.ir.errors import ArgumentError
from tests.cases.models import Chain, Tied
from tests.support.equality import (
    Case,
    Trained,
    assert_trained_alike,
    train_pipeline,
    train_unsplit,
)
from tests.support.ranks import results, run_ranks

ROWS = (4, 8)
"""Of each replica: shares of the batch may differ."""


def mean_square(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def cases() -> dict[str, Case]:
    torch.manual_seed(0)
    x, ids = torch.randn(sum(ROWS), 8), torch.randint(0, 16, (sum(ROWS), 5))
    return {
        "chain": Case(Chain(), (x,), {}, mean_square),
        "tied": Case(Tied(), (ids,), {}, mean_square),
    }


def train_both(rank: int) -> dict[str, float]:
    replica = rank % 2
    norms = {}
    for name, case in cases().items():
        want = train_unsplit(case, 1, 2)
        part = case.args[0].split(ROWS)[replica]
        plan = stagecut.partition(
            case.model, 4, (part[:2],), replicas=2, n_microbatches=2, schedule="1f1b"
        )
        assert plan.n_stages == 2
        if replica:
            with torch.no_grad():
                for parameter in case.model.parameters():
                    parameter.add_(1)  # what replica 0 has is what counts
        pipe = stagecut.pipeline(plan, case.model, loss_fn=case.loss)
        got: Trained = train_pipeline(Case(case.model, (part,), {}, case.loss), pipe, 2)
        assert_trained_alike(got, want, whole=False)
        assert pipe.last_timeline().n_devices == 2
        norms[name] = float(pipe.clip_grad_norm_(1e9))
        whole = [g for g in want.gradients.values() if g is not None]
        torch.testing.assert_close(norms[name], float(torch.nn.utils.get_total_norm(whole)))
    return norms


def test_replicas_train_as_one() -> None:
    norms = results(run_ranks(4, train_both, seconds=200))
    assert all(n == norms[0] for n in norms)


def test_replicas_divide_the_devices() -> None:
    with pytest.raises(ArgumentError, match="4 devices cannot be 3 equal pipelines"):
        stagecut.partition(Chain(), 4, (torch.zeros(2, 8),), replicas=3)
