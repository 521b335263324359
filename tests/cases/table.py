"""Every case by name: how to build it, and at how many stages it runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

import stagecut
from tests.cases import models, odd
from tests.cases.transformers import bert, gpt2, llama, resnet, vit
from tests.support.equality import Case, cut

W = models.WIDTH


@dataclass(frozen=True)
class Entry:
    """One case of the table."""

    build: Callable[[], Case]
    stages: tuple[int, ...] = (2, 3, 4)
    n_microbatches: int = 4
    schedule: str = "1f1b"
    optimizer: str = "sgd"
    distributed: int = 2
    """The number of real processes it also runs on."""
    training: bool = True
    """False: only answers, as in inference."""


def built(entry: str) -> Case:
    """A case of the table, the same in every process."""
    torch.manual_seed(0)
    return TABLE[entry].build()


@functools.cache
def planned(name: str, n_stages: int) -> stagecut.Plan:
    """A plan for a case, from one of its micro-batches; made once for all tests of a process."""
    entry, case = TABLE[name], built(name)
    args, kwargs = cut((case.args, case.kwargs), entry.n_microbatches)[0]
    return stagecut.partition(
        case.model, n_stages, args, kwargs,
        n_microbatches=entry.n_microbatches, schedule=entry.schedule, training=entry.training,
    )  # fmt: skip


def rows(n: int = 8, *shape: int) -> torch.Tensor:
    return torch.randn(n, *(shape or (W,)))


def ids(n: int = 8) -> torch.Tensor:
    return torch.randint(0, 16, (n, 5))


def mean_square(output: Any) -> torch.Tensor:
    return output.square().mean()


def first_only(output: Any) -> torch.Tensor:
    return output[0].square().mean()


def of_tree(output: Any) -> torch.Tensor:
    return output["logits"].square().mean() + output["more"][0].mean()


def itself(output: torch.Tensor) -> torch.Tensor:
    return output


def case(model: Callable[[], Any], *args: Any, loss: Any = mean_square, **kwargs: Any) -> Case:
    return Case(model(), args, kwargs, loss)


def odd_case(model: Callable[[], Any], *args: Any, **kwargs: Any) -> Case:
    return case(model, *args, loss=odd.all_squares, **kwargs)


def odd_entry(build: Callable[[], Case], n_stages: int = 3) -> Entry:
    return Entry(build, (n_stages,), n_microbatches=2, distributed=n_stages)


TABLE: Mapping[str, Entry] = {
    "chain": Entry(lambda: case(models.Chain, rows()), (1, 2, 3, 4, 6), distributed=2),
    "seven layers": Entry(lambda: case(lambda: models.Chain(7), rows()), (2, 3, 4, 5, 7)),
    "uneven": Entry(lambda: case(models.Chain, rows(7)), distributed=3),
    "one row": Entry(lambda: case(models.Chain, rows()), (3,), n_microbatches=8),
    "one microbatch": Entry(lambda: case(models.Chain, rows()), (3,), n_microbatches=1),
    "gpipe": Entry(lambda: case(models.LongSkip, rows()), schedule="gpipe", distributed=4),
    "adamw": Entry(lambda: case(models.Chain, rows()), (3,), optimizer="adamw"),
    "many microbatches": Entry(
        lambda: case(models.Chain, rows(32)), (2, 3), n_microbatches=16, distributed=3
    ),
    "residual": Entry(lambda: case(models.Residual, rows()), (2, 3, 5), distributed=3),
    "masked": Entry(lambda: case(models.Masked, rows(), rows())),
    "mask by keyword": Entry(lambda: case(models.Masked, rows(), mask=rows()), distributed=3),
    "own loss": Entry(lambda: case(models.OwnLoss, rows(), rows(), loss=itself)),
    "target": Entry(lambda: Case(models.Chain(), (rows(),), {}, F.mse_loss, rows()), distributed=2),
    "none": Entry(lambda: case(models.Optional, rows(), None), (2, 3)),
    "numbers": Entry(lambda: case(models.Optional, rows(), scale=3, last=True), (2, 3)),
    "trees": Entry(
        lambda: case(models.Trees, {"x": rows(), "scales": [rows()]}, loss=of_tree),
        (2, 3),
        distributed=3,
    ),
    "tree answers": Entry(
        lambda: case(models.Trees, {"x": rows(), "scales": [rows()]}),
        (2, 3),
        schedule="forward",
        training=False,
    ),
    "answers": Entry(
        lambda: case(models.Norms, rows(8, 3, 6, 6)), (3,), schedule="forward", training=False
    ),
    "in place": Entry(lambda: case(models.InPlace, rows())),
    "long skip": Entry(lambda: case(models.LongSkip, rows()), distributed=3),
    "fan": Entry(lambda: case(models.Fan, rows()), distributed=4),
    "integers": Entry(lambda: case(models.Integers, ids()), distributed=3),
    "strides": Entry(lambda: case(models.Strides, rows()), (2, 3)),
    "tied": Entry(lambda: case(models.Tied, ids()), distributed=3),
    "shared layer": Entry(lambda: case(models.SharedLayer, rows()), distributed=2),
    "buffers": Entry(lambda: case(models.Buffers, rows()), (2, 3), distributed=2),
    "norms": Entry(lambda: case(models.Norms, rows(8, 3, 6, 6)), distributed=2),
    "frozen": Entry(lambda: case(models.Frozen, rows()), (2, 3), distributed=3),
    "unused": Entry(lambda: case(models.Unused, rows(), loss=first_only), (2, 3), distributed=2),
    "without grad": Entry(lambda: case(models.WithoutGrad, rows())),
    "recurrent": Entry(lambda: case(models.Recurrent, rows(8, 4, W)), (2, 3)),
    "unet": Entry(lambda: case(models.UNet, rows(4, 3, 8, 8)), n_microbatches=2, distributed=3),
    "kinds of tensor": odd_entry(lambda: odd_case(odd.Kinds, rows())),
    "auxiliary losses": odd_entry(lambda: odd_case(odd.Auxiliary, rows())),
    "autocast": odd_entry(lambda: odd_case(odd.Casts, rows())),
    "hooks": odd_entry(lambda: odd_case(odd.Hooks, rows())),
    "own backward": odd_entry(lambda: odd_case(odd.Quantized, rows())),
    "teacher": odd_entry(lambda: odd_case(odd.Teacher, rows()), 2),
    "queue": odd_entry(lambda: odd_case(odd.Queue, rows())),
    "selected rows": odd_entry(lambda: odd_case(odd.Selects, rows()), 2),
    "returned types": odd_entry(lambda: odd_case(odd.Returned, rows())),
    "keywords": odd_entry(
        lambda: odd_case(odd.Keywords, x=rows(), kind="b-c", shift=rows()),
    ),
    "experts": odd_entry(lambda: odd_case(odd.Experts, rows())),
    "assertions": odd_entry(lambda: odd_case(odd.Asserts, rows())),
    "precisions": odd_entry(lambda: odd_case(odd.Precisions, rows()), 2),
    "packed": odd_entry(
        lambda: odd_case(odd.Packs, rows(8, 4, W), torch.tensor([4, 2, 3, 1] * 2)), 2
    ),
    "gives everything": odd_entry(lambda: odd_case(odd.Gives, rows()), 2),
    "own generator": odd_entry(lambda: odd_case(odd.Noisy, rows())),
    "freezes": odd_entry(lambda: odd_case(odd.Freezes, rows())),
    "loops": odd_entry(lambda: odd_case(odd.Loops, rows(8, 4, W))),
    "gpt2": Entry(gpt2, distributed=2),
    "bert": Entry(bert),
    "vit": Entry(vit),
    "resnet": Entry(resnet, distributed=3),
    "llama": Entry(llama, distributed=4),
}
