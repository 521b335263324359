"""Every stage's backward in two halves: the same gradients, and together the same FLOPs."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import stagecut
from tests.support.flops import Flops
from tests.zoo.checking import MICROBATCHES, parts, traced_once
from tests.zoo.entry import Entry
from tests.zoo.table import QUICK, ZOO

SOME = QUICK[:3]
SLOW = tuple(pytest.param(name, marks=pytest.mark.zoo) for name in ZOO if name not in SOME)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [*SOME, *SLOW])
def test_the_halves_add_up_to_the_whole(name: str) -> None:
    entry = ZOO[name]
    torch.manual_seed(0)
    with traced_once():
        whole, flops = step(entry, "1f1b")
        divided, flops_of_halves = step(entry, "zero_bubble")
    assert flops_of_halves == flops
    assert set(divided) == set(whole)
    for weight, gradient in whole.items():
        assert_close(divided[weight], gradient)


def step(entry: Entry, schedule: str) -> tuple[dict[str, torch.Tensor], int]:
    """The gradients of one step under a schedule, and what it computed."""
    torch.manual_seed(0)
    model, inputs = entry.build()
    plan = stagecut.partition(
        model, 2, example_kwargs=parts(inputs)[0], n_microbatches=MICROBATCHES, schedule=schedule,
        **entry.options,
    )  # fmt: skip
    pipe = stagecut.pipeline(plan, model, loss_fn=entry.loss, runtime="local")
    torch.manual_seed(1)  # of the step's draws: tracing may have taken some
    with Flops() as counted:
        pipe.train_step(**inputs)
    gradients = {n: p.grad for n, p in pipe.named_parameters() if p.grad is not None}
    return gradients, counted.total
