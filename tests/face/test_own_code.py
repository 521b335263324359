"""Export folders whose stages import modules of the user's own."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import stagecut
from stagecut.ir.errors import PlanError, UnsupportedError

X = torch.randn(4, 6)


class Kind(enum.Enum):
    SMALL, LARGE = 1, 2


class Settings:
    """A configuration object, as models keep them."""

    def __init__(self) -> None:
        self.rates, self.kind, self.names = (0.5, 2), Kind.LARGE, {1: "one"}


class Gate(nn.Module):
    """Branches on data; keeps many kinds of attributes."""

    def __init__(self, width: int, settings: Settings) -> None:
        super().__init__()
        self.settings, self.activation, self.dtype = settings, F.silu, torch.float32
        self.a, self.norm = nn.Linear(width, width, bias=False), nn.BatchNorm1d(width)
        self.inner = nn.ModuleList([nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.0)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.activation(self.norm(self.a(x))).to(self.dtype) * self.settings.rates[0]
        for module in self.inner:
            h = module(h)
        large = self.settings.kind is Kind.LARGE and self.settings.names[1] == "one"
        return x + (h * 2 if large and h.sum() > 0 else h)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.gates = nn.ModuleList(Gate(6, Settings()) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for gate in self.gates:
            x = gate(x)
        return x


@pytest.fixture
def model() -> Stack:
    torch.manual_seed(0)
    return Stack()


def test_a_folder_that_may_import_runs_and_trains(model: Stack, tmp_path: Path) -> None:
    plan = stagecut.partition(model, 2, (X,), n_microbatches=1)
    plan.export(tmp_path / "stages", model, allow_imports=True)
    pipe = stagecut.pipeline(tmp_path / "stages", loss_fn=torch.mean, allow_imports=True)
    want = model(X).mean()
    want.backward()
    assert_close(pipe.train_step(X), want.detach())
    for name, parameter in pipe.named_parameters():
        assert_close(parameter.grad, model.get_parameter(name).grad)
    assert_close(pipe.state_dict(), dict(model.state_dict()))
    assert_close(pipe.eval()(X), model.eval()(X))


def test_each_stage_loads_alone(model: Stack, tmp_path: Path) -> None:
    plan = stagecut.partition(model, 2, (X,), training=False)
    plan.export(tmp_path / "stages", model, allow_imports=True)
    value: torch.Tensor = X
    for k in range(2):
        stage = stagecut.load_stage(tmp_path / "stages", k, allow_imports=True).eval()
        (value,) = stage(value)
    assert_close(value, model.eval()(X))


def test_the_files_stand_alone_beside_the_users_code(model: Stack, tmp_path: Path) -> None:
    folder = tmp_path / "stages"
    stagecut.partition(model, 2, (X,), training=False).export(folder, model, allow_imports=True)
    assert "tests.face.test_own_code.Gate" in (folder / "README.md").read_text()
    code = (
        "import torch\nfrom safetensors.torch import load_file\nfrom stage_1 import Stage1\n"
        "stage = Stage1()\n"
        "left = stage.load_state_dict(load_file('stage_1.safetensors'), strict=False)\n"
        "assert not left.unexpected_keys and not left.missing_keys, left\n"
    )
    root = str(Path(__file__).parents[2])
    environment = {"PYTHONPATH": root, "PATH": "", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, env=environment)


def test_nothing_is_imported_without_leave(model: Stack, tmp_path: Path) -> None:
    plan = stagecut.partition(model, 2, (X,))
    with pytest.raises(UnsupportedError, match="allow_imports=True"):
        plan.export(tmp_path / "stages", model)
    plan.export(tmp_path / "stages", model, allow_imports=True)
    for load in (lambda: stagecut.pipeline(tmp_path / "stages"),
                 lambda: stagecut.load_stage(tmp_path / "stages", 0)):  # fmt: skip
        with pytest.raises(UnsupportedError, match=r"import tests.face.test_own_code.Gate, torch"):
            load()


def test_a_changed_description_is_refused(model: Stack, tmp_path: Path) -> None:
    stagecut.partition(model, 2, (X,)).export(tmp_path / "s", model, allow_imports=True)
    path = tmp_path / "s" / "modules.json"
    described = json.loads(path.read_text())
    described["gates.0"]["class"] = "os:PathLike"
    path.write_text(json.dumps(described))
    with pytest.raises(PlanError, match="was changed"):
        stagecut.pipeline(tmp_path / "s", allow_imports=True)
    path.unlink()
    with pytest.raises(PlanError, match=r"modules.json cannot be read"):
        stagecut.pipeline(tmp_path / "s", allow_imports=True)


def test_what_cannot_be_written_down_is_named(model: Stack, tmp_path: Path) -> None:
    model.gates[1].scale = torch.ones(3)
    model.gates[2].pick = lambda x: x
    model.gates[0].register_forward_hook(lambda *_: None)
    plan = stagecut.partition(model, 2, (X,))
    with pytest.raises(UnsupportedError, match="cannot be exported") as told:
        plan.export(tmp_path / "stages", model, allow_imports=True)
    for fault in ("gates.0: it has hooks", "gates.1.scale: a Tensor", "gates.2.pick: a function"):
        assert fault in str(told.value)


def test_without_such_modules_it_changes_nothing(tmp_path: Path) -> None:
    plain = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    plan = stagecut.partition(plain, 2, (X,))
    plan.export(tmp_path / "a", plain)
    plan.export(tmp_path / "b", plain, allow_imports=True)
    assert {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "b").iterdir()
    }
