"""The weight table: what each tensor of a model's state is, and under which names."""

from __future__ import annotations

import copy
import inspect
import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import stagecut
from stagecut.frontend import trace
from stagecut.ir.graph import StageDevice, Weight, op_refs
from tests.codegen.running import assert_trains_alike, mean_square, pipe_of
from tests.frontend.leaving import assert_left_as_it_was

X = {"x": torch.randn(4, 6)}


class Kinds(nn.Module):
    """One of each kind of state."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.b.weight = self.a.weight
        self.a.bias.requires_grad_(False)
        self.register_buffer("kept", torch.ones(6))
        self.register_buffer("left", torch.arange(6.0), persistent=False)
        self.plain = torch.full((6,), 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.a(x) + self.left) * self.plain
        literal = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        return self.b(h + self.kept) * literal


def weights(model: nn.Module) -> dict[str, Weight]:
    return {w.name: w for w in trace(model, (), X).graph.weights}


def test_each_kind_is_what_it_is() -> None:
    found = weights(Kinds())
    assert found["a.weight"].aliases == ("b.weight",) and found["a.weight"].trainable
    assert not found["a.bias"].trainable
    assert found["kept"].kind == "buffer" and found["kept"].persistent
    assert found["left"].kind == "buffer" and not found["left"].persistent
    assert [w.type.shape for w in found.values() if w.kind == "constant"] == [(6,), (6,)]


@pytest.mark.parametrize("n_stages", [1, 2, 3])
def test_each_kind_trains_as_in_the_model(n_stages: int) -> None:
    model = Kinds()
    pipe = assert_trains_alike(model, X, n_stages)
    assert set(pipe.state_dict()) == set(model.state_dict())
    assert model.get_parameter("a.weight") is dict(pipe.named_parameters())["a.weight"]


def test_an_export_folder_holds_each_kind(tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = Kinds()
    plan = stagecut.partition(model, 2, example_kwargs=X, n_microbatches=1)
    plan.export(tmp_path / "out", model)
    pipe = stagecut.pipeline(tmp_path / "out", loss_fn=mean_square, runtime="local")
    assert_close(pipe.train_step(**X), mean_square(model(**X)).detach())
    assert set(pipe.state_dict()) == set(model.state_dict())


class Chain(nn.Module):
    """Ties in a pattern: 0-2, 1-3, and one used thrice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(5))
        self.layers[2].weight = self.layers[0].weight
        self.layers[3].weight = self.layers[1].weight
        self.layers[4].weight = self.layers[0].weight
        self.layers[4].bias = self.layers[1].bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


@pytest.mark.parametrize("n_stages", [2, 3, 5])
def test_ties_in_any_pattern(n_stages: int) -> None:
    assert_trains_alike(Chain(), X, n_stages)


PARAMETRIZED: dict[str, Callable[[], nn.Module]] = {
    "weight_norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)),
    "spectral_norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)),
    "orthogonal": lambda: nn.utils.parametrizations.orthogonal(nn.Linear(6, 6)),
}


@pytest.mark.parametrize("kind", PARAMETRIZED)
def test_parametrized_weights_keep_their_names(kind: str) -> None:
    model = nn.Sequential(PARAMETRIZED[kind](), nn.Tanh(), PARAMETRIZED[kind]())
    pipe = assert_trains_alike(model, {"input": X["x"]}, 2)
    assert {n for n, _ in pipe.named_parameters()} == {n for n, _ in model.named_parameters()}
    assert "0.parametrizations.weight.original" in " ".join(pipe.state_dict())


@pytest.mark.filterwarnings("ignore:.*is deprecated in favor of")
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
def test_the_norms_of_old_that_work_by_hooks(kind: str) -> None:
    def build() -> nn.Module:  # such a model cannot be copied
        torch.manual_seed(0)
        norm = getattr(nn.utils, kind)
        return nn.Sequential(norm(nn.Linear(6, 6)), nn.Tanh(), norm(nn.Linear(6, 6)))

    model, unsplit = build(), build()
    loss = mean_square(unsplit(X["x"]))
    loss.backward()
    pipe = pipe_of(model, {"input": X["x"]}, 2)
    assert_close(pipe.train_step(X["x"]), loss.detach())
    assert pipe.state_dict().keys() == unsplit.state_dict().keys()
    gradients = {name: p.grad for name, p in pipe.named_parameters()}
    assert_close(gradients, {name: p.grad for name, p in unsplit.named_parameters()})
    assert_close(dict(model.named_buffers()), dict(unsplit.named_buffers()))


def test_timing_a_model_leaves_its_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    norm = nn.utils.parametrizations.spectral_norm
    model = nn.Sequential(norm(nn.Linear(6, 6)), nn.BatchNorm1d(6), nn.Linear(6, 6))
    before = copy.deepcopy(dict(model.state_dict()))
    stagecut.partition(model, 2, (X["x"],), cluster="CPU", cost="measured")
    assert_close(dict(model.state_dict()), before, rtol=0, atol=0)


def test_spectral_vectors_of_the_original_move_by_training_alone() -> None:
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), nn.Linear(6, 6))
    before = copy.deepcopy(model.state_dict())
    stagecut.partition(model, 2, (X["x"],), n_microbatches=2)
    assert_close(model.state_dict(), before, rtol=0, atol=0)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "kinds": Kinds,
    "norms": lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.1)),
    "lstm": lambda: nn.LSTM(6, 6),
    "eval": lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)).eval(),
    "parametrized": PARAMETRIZED["spectral_norm"],
}


@pytest.mark.parametrize("kind", MODELS)
def test_the_model_is_left_as_it_was(kind: str) -> None:
    model = MODELS[kind]()
    (name,) = itertools.islice(inspect.signature(model.forward).parameters, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_left_as_it_was(model, {name: X["x"]})


def test_flat_weights_of_an_lstm_stay_its_own_parameters() -> None:
    lstm = nn.LSTM(6, 6)
    trace(lstm, (X["x"],))
    assert all(any(w is p for p in lstm.parameters()) for w in lstm._flat_weights)


def test_a_tensor_that_forward_assigns_is_reported() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 6)
            self.last = torch.zeros(6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.a(x) + self.last
            self.last = h.detach()[0]
            return h

    model = Remembers()
    graph = trace(model, (), X).graph
    assert any("assigns the tensor last" in note for note in graph.notes)
    assert torch.equal(model.last, torch.zeros(6))


def test_partitioning_twice_gives_what_each_asked_for() -> None:
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
    first = stagecut.partition(model, 2, (X["x"],), n_microbatches=1, pins={"2": 0})
    second = stagecut.partition(model, 4, (X["x"],), n_microbatches=2, training=False)
    again = stagecut.partition(model, 2, (X["x"],), n_microbatches=1, pins={"2": 0})
    assert first.n_stages == 2 and second.n_stages == 4
    assert again.data.stages_of_ops == first.data.stages_of_ops
    assert again.data.graph == first.data.graph


def test_baked_devices_become_the_stages() -> None:
    class Positions(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            here = torch.arange(x.shape[1], device=x.device) + torch.zeros(6, device="cpu")
            return x.to("cpu").float().to(torch.float32) + here

    graph = trace(Positions(), (X["x"],)).graph
    made = [op for op in graph.ops if op.target.startswith(("aten.arange", "aten.zeros"))]
    assert len(made) == 2
    assert all(StageDevice() in (v for _, v in op.kwargs) for op in made)
    assert not any("assert" in op.target or op.target.startswith("aten.to.") for op in graph.ops)


def test_equal_inputs_stay_two() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.a(2 * x + y)

    x, y = torch.randn(4, 6), torch.randn(4, 6)
    model = Sum()
    graph = trace(model, (x, x)).graph
    assert {i.value.name for i in graph.inputs if i.value} == {
        ref.name for op in graph.ops for ref in op_refs(op)
    } & {"x", "y"}
    pipe = pipe_of(model, {"x": x, "y": x}, 1)
    assert_close(pipe.train_step(x, y), mean_square(model(x, y)).detach())


def test_inputs_that_share_storage_stay_their_own() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor, more: dict[str, Any]) -> torch.Tensor:
            return self.a(2 * x + more["y"][0]) * more["part"][:, :1]

    model, x = Sum(), torch.randn(4, 6)
    pipe = pipe_of(model, {"x": x, "more": {"y": [x], "part": x[:, :3]}}, 1)
    other = {"y": [torch.randn(4, 6)], "part": torch.randn(4, 3)}
    assert_close(pipe.train_step(x, other), mean_square(model(x, other)).detach())


def test_buffers_are_written_once_a_microbatch() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True))
    pipe = pipe_of(model, {"input": X["x"]}, 2, n_microbatches=2)
    pipe.train_step(torch.randn(8, 6))
    assert int(model[1].num_batches_tracked) == 2
