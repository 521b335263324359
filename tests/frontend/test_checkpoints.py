"""Activation checkpointing in the user's model survives: same gradients, and less memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from stagecut.frontend import trace
from stagecut.ir.graph import Recompute
from tests.codegen.running import assert_trains_alike, mean_square, pipe_of, sources

WIDTH = 16


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.b(self.dropout(torch.tanh(torch.sigmoid(self.a(x)))))


class Deep(nn.Module):
    def __init__(self, saves: bool, depth: int = 6, reentrant: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.saves, self.reentrant = saves, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant) if self.saves else block(x)
        return x


class _Peak(TorchDispatchMode):
    """The most bytes of new tensors alive at once, by watching every tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.alive, self.most, self.known = 0, 0, set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor):
                self._watch(tensor.untyped_storage())
        return made

    def _watch(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self.known:
            return
        n_bytes, key = storage.nbytes(), storage._cdata
        self.known.add(key)
        self.alive += n_bytes
        self.most = max(self.most, self.alive)
        weakref.finalize(storage, self._free, key, n_bytes)

    def _free(self, key: int, n_bytes: int) -> None:
        self.known.discard(key)
        self.alive -= n_bytes


def inputs() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(256, WIDTH)}


def peak_bytes(step: Callable[[], Any]) -> int:
    """Of a step, once gradients are there."""
    step()
    gc.collect()
    with _Peak() as peak:
        step()
    return peak.most


@pytest.mark.parametrize("n_stages", [1, 2, 4])
def test_gradients_are_the_models_own(n_stages: int) -> None:
    pipe = assert_trains_alike(Deep(True), inputs(), n_stages)
    assert "checkpoint(recompute_" in sources(pipe)


def test_each_region_is_a_group_of_its_own() -> None:
    graph = trace(Deep(True), (), inputs()).graph
    groups = [{c.group for c in op.context if isinstance(c, Recompute)} for op in graph.ops]
    by_block = {op.scope.split(".")[1]: group for op, group in zip(graph.ops, groups, strict=True)}
    assert list(by_block.values()) == [{i} for i in range(6)]


def test_where_torch_hides_the_regions_the_plan_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("checkpointing" in note for note in trace(Deep(True), (), inputs()).graph.notes)
    monkeypatch.delattr(torch._C._autograd, "_top_saved_tensors_default_hooks")
    graph = trace(Deep(True), (), inputs()).graph
    assert any("does not show what activation checkpointing covers" in n for n in graph.notes)
    assert not any(isinstance(c, Recompute) for op in graph.ops for c in op.context)
    assert_trains_alike(Deep(True), inputs(), 2)


def test_it_still_saves_memory() -> None:
    batch, unsplit = inputs(), Deep(True)
    plain, saving = (pipe_of(Deep(saves), batch) for saves in (False, True))
    without = peak_bytes(lambda: plain.train_step(**batch))
    saved = peak_bytes(lambda: saving.train_step(**batch))
    eager = peak_bytes(lambda: mean_square(unsplit(**batch)).backward())
    assert saved < 0.5 * without, f"{saved} bytes with checkpointing, {without} without"
    assert saved < 1.2 * eager, f"{saved} bytes split, {eager} bytes unsplit"


@pytest.mark.parametrize("n_microbatches", [1, 4])
def test_dropout_is_replayed(n_microbatches: int) -> None:
    model = Deep(True)
    for block in model.blocks:
        block.dropout.p = 0.5
    batch = inputs()
    pipe = pipe_of(model, batch, 1, n_microbatches=n_microbatches, schedule="gpipe")
    torch.manual_seed(1)
    pipe.train_step(**batch)
    saving = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.saves = False
    pipe = pipe_of(model, batch, 1, n_microbatches=n_microbatches, schedule="gpipe")
    torch.manual_seed(1)
    pipe.train_step(**batch)
    torch.testing.assert_close([p.grad for p in model.parameters()], saving)


def test_what_is_replayed_does_not_depend_on_the_number_of_stages() -> None:
    model, batch, found = Deep(True), inputs(), []
    for block in model.blocks:
        block.dropout.p = 0.5
    for n_stages in (1, 2, 4):
        model.zero_grad()
        pipe = pipe_of(model, batch, n_stages, n_microbatches=4)
        torch.manual_seed(1)
        loss = pipe.train_step(**batch)
        found.append((loss, [p.grad.clone() for p in model.parameters()]))
    torch.testing.assert_close(found[1:], found[:1] * 2)


def test_transformers_own_switch() -> None:
    import transformers as hf

    config = hf.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, use_cache=False, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = hf.LlamaForCausalLM(config)
    model.activation_checkpointing_enable()
    tokens = torch.randint(3, 32, (4, 6))
    pipe = assert_trains_alike(
        model, {"input_ids": tokens, "labels": tokens.clone()}, 2, lambda out: out.loss
    )
    assert sources(pipe).count("checkpoint(recompute_") >= 2


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_reentrant_region_is_not_traced_into() -> None:
    """Traced, it would look like no_grad and lose its gradients: its module is kept as one op."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Deep(True, reentrant=True))
    batch = {"input": inputs()["x"]}
    traced = trace(model, (), batch)
    assert "module:1" in {op.target for op in traced.graph.ops}
    assert "use_reentrant=False" in traced.frontend or "use_reentrant" in str(traced.graph.notes)
    assert_trains_alike(model, batch, 2, lambda out: out.square().mean())


def test_a_region_may_hold_other_regions() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def part(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            with torch.no_grad():
                scale = torch.sigmoid(self.a(x))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = self.b(x)
            return h.float() * scale, h

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, h = checkpoint(self.part, x, use_reentrant=False)
            return self.a(y) + h

    text = sources(assert_trains_alike(Mixed(), inputs(), 1, mean_square))
    assert "with torch.no_grad():" in text and "with torch.autocast(" in text


def test_statistics_inside_a_region_move_as_often_as_in_the_model() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())
            self.head = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(checkpoint(self.body, x, use_reentrant=False))

    model = Normed()
    assert_trains_alike(model, inputs(), 2)
    assert int(model.body[1].num_batches_tracked) == 2  # the region runs twice, as in eager
