"""On CUDA devices: the same code, the same numbers. Skipped, visibly, where there is none."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

import stagecut
from tests.cases.models import Chain
from tests.face.test_pipeline import Dropping
from tests.support.equality import Case, assert_trained_alike, train_pipeline, train_unsplit

pytestmark = pytest.mark.gpu
STEPS = 3


def mean_square(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def test_one_device_trains_as_the_unsplit_model() -> None:
    torch.manual_seed(0)
    case = Case(Chain().cuda(), (torch.randn(8, 8, device="cuda"),), {}, mean_square)
    want = train_unsplit(case, 4, STEPS)
    plan = stagecut.partition(case.model, 3, (case.args[0][:2],), n_microbatches=4)
    pipe = stagecut.pipeline(plan, case.model, loss_fn=case.loss, runtime="local")
    assert_trained_alike(train_pipeline(case, pipe, STEPS), want)


def test_draws_do_not_depend_on_the_number_of_stages() -> None:
    losses = []
    for n_stages in (1, 2, 4):
        torch.manual_seed(0)
        model, x = Dropping().cuda(), torch.randn(8, 8, device="cuda")
        plan = stagecut.partition(model, n_stages, (x[:2],), n_microbatches=4)
        pipe = stagecut.pipeline(plan, model, loss_fn=mean_square, runtime="local")
        torch.manual_seed(7)
        losses.append(float(pipe.train_step(x)))
    assert losses[0] == losses[1] == losses[2]


def on_two_devices(rank: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank)}
    dist.init_process_group("nccl", rank=rank, world_size=2)
    torch.manual_seed(0)
    case = Case(Chain(), (torch.randn(8, 8),), {}, mean_square)
    want = train_unsplit(case, 4, STEPS)
    plan = stagecut.partition(case.model, 2, (case.args[0][:2],), n_microbatches=4)
    pipe = stagecut.pipeline(plan, case.model, loss_fn=case.loss)
    got = train_pipeline(case, pipe, STEPS)
    for name, value in got.state.items():
        torch.testing.assert_close(value.cpu(), want.state[name])
    dist.destroy_process_group()


def test_two_devices_over_nccl() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    torch.multiprocessing.spawn(on_two_devices, (29_571,), nprocs=2)
