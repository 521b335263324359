"""What does in eval what it does in training, on the split model too."""

from __future__ import annotations

import ast
import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from stagecut.frontend.fixed_flags import fixed_flags
from stagecut.frontend.mode_reads import mode_reads
from stagecut.ir.graph import ByMode
from tests.codegen.running import pipe_of

X = torch.randn(6, 4)
SOURCE = """
import torch
import torch.nn.functional as nnf
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import dropout as drop

{outside}

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.on, self.rate = nn.Linear(4, 4), True, 0.5
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x):
        x = self.a(x)
        return {inside}
"""
ATTENTION = "F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], dropout_p={})[:, 0]"
DRAWING = {
    "left out": ("", "F.dropout(x, 0.5)"),
    "a constant": ("", "F.dropout(x, p=0.5, training=True)"),
    "placed": ("", "torch.nn.functional.dropout(x, 0.5, True)"),
    "an attribute": ("", "nn.functional.dropout(x, 0.5, self.on)"),
    "another name": ("", "drop(x, 0.5)"),
    "a function": ("def shaken(x):\n    return nnf.dropout(x, 0.5)", "shaken(x)"),
    "a lambda": ("shaken = lambda x: nnf.dropout(x, 0.5)", "shaken(x)"),
    "another kind": ("", "F.alpha_dropout(x, 0.5, training=True)"),
    "attention": ("", ATTENTION.format("0.5")),
    "attention by attribute": ("", ATTENTION.format("self.rate")),
}
FIXED = {
    "statistics of none": ("", "F.batch_norm(x, None, None, training=True)"),
    "statistics of the batch": ("", "F.batch_norm(x, self.mean, self.var, training=True)"),
    "places": ("", "F.instance_norm(x[:, :, None] * torch.arange(3.0))[:, :, 1]"),
}
KEPT = "def kept(x, training):\n    return F.dropout(x, 0.5, training)"
MODE = {
    "its own": ("", "F.dropout(x, 0.5, self.training)"),
    "by name": (KEPT, "kept(x, self.training)"),
    "off": ("", "F.rrelu(F.batch_norm(x, self.mean, self.var)) + F.dropout(x, 0.5, False)"),
    "attention off": ("", ATTENTION.format("0.0")),
    "attention by mode": ("", ATTENTION.format("self.rate if self.training else 0.0")),
}


def model_of(folder: Path, code: tuple[str, str]) -> nn.Sequential:
    """In a file of its own, since files are read."""
    name = f"fixed_{hashlib.sha256(repr(code).encode()).hexdigest()[:12]}"
    (folder / f"{name}.py").write_text(SOURCE.format(outside=code[0], inside=code[1]))
    return nn.Sequential(nn.Linear(4, 4), importlib.import_module(name).Own())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


class Placed(nn.Module):
    """A norm over three places a channel."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x[:, :, None] * torch.arange(3.0))[:, :, 1]


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm1d(4),
    "of the batch alone": lambda: nn.BatchNorm1d(4, track_running_stats=False),
    "instance norm": lambda: Placed(nn.InstanceNorm1d(4, affine=True)),
    "that tracks": lambda: Placed(nn.InstanceNorm1d(4, track_running_stats=True)),
    "rrelu": lambda: nn.RReLU(),
}


@pytest.mark.parametrize("name", DRAWING)
def test_what_draws_in_eval_draws_in_eval(name: str, folder: Path) -> None:
    pipe = pipe_of(model_of(folder, DRAWING[name]), {"input": X}, 2)
    pipe.eval()
    assert not torch.equal(pipe(X), pipe(X))


@pytest.mark.parametrize("name", FIXED | MODE)
def test_eval_gives_what_the_model_gives(name: str, folder: Path) -> None:
    model = model_of(folder, (FIXED | MODE)[name])
    pipe = pipe_of(model, {"input": X}, 2)
    pipe.train_step(X)
    assert_close(pipe.eval()(X), model.eval()(X))


@pytest.mark.parametrize("name", NORMS)
def test_so_do_norms_with_and_without_statistics(name: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), NORMS[name](), nn.Linear(4, 4))
    pipe = pipe_of(model, {"input": X}, 2)
    pipe.train_step(X)
    assert_close(pipe.eval()(X), model.eval()(X))


def test_only_what_needs_it_is_traced_twice(folder: Path) -> None:
    assert not mode_reads(nn.Sequential(*(norm() for norm in NORMS.values())))
    needy = [name for name in DRAWING if mode_reads(model_of(folder, DRAWING[name]))]
    assert needy == list(DRAWING)
    needy = [name for name in MODE if mode_reads(model_of(folder, MODE[name]))]
    assert needy == ["by name"]  # a function that may do anything with it


def test_a_flag_that_both_modes_share_is_no_choice(folder: Path) -> None:
    graph = pipe_of(model_of(folder, DRAWING["left out"]), {"input": X}).plan.graph
    (dropped,) = (op for op in graph.ops if op.target.startswith("aten.dropout"))
    assert not any(isinstance(arg, ByMode) for arg in dropped.args)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from torch import nn\nnn.functional.dropout(x)", [2]),
        ("import torch\ntorch.nn.functional.dropout(x, training=True)", [2]),
        ("import torch.nn.functional as F\nF.dropout(x, 0.1, self.training)", []),
        ("import torch.nn.functional as F\nF.dropout(x, *rest)\nF.dropout(x, **rest)", []),
        ("from torch.nn.functional import dropout\ndropout(x, 0.1)", [2]),
        ("from torch.nn.functional import dropout as d\nd(x, 0.1)\ndropout(x)", [2]),
        ("from torch.nn import functional\nfunctional.dropout(x, 0.1)", [2]),
        ("self.dropout(x)\nself.F.dropout(x)\ndropout(x)", []),
        ("import torch.nn.functional as F\nF.batch_norm(x, m, v)\nF.instance_norm(x)", [3]),
        ("import torch.nn.functional as F\nF.batch_norm(x, m, v, w, b, True)", [2]),
        ("import torch.nn.functional as F\nF.scaled_dot_product_attention(q, k, v)", []),
    ],
)
def test_calls_are_found_under_whatever_name(text: str, found: list[int]) -> None:
    tree = ast.parse(text)
    assert list(fixed_flags(tree, tree)) == found
