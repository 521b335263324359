"""Saved bytes against what autograd really packs in a run of the whole model, by storage."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from stagecut.ir.devices import device
from stagecut.passes.costs import annotate
from stagecut.passes.functional import out_of_place
from stagecut.passes.saved import saved_storages
from tests.passes.models import CASES, case, graph_of
from tests.support.interpret import weights_of


def really_saved(model: nn.Module, *inputs: torch.Tensor) -> int:
    """Bytes of the distinct storages autograd packs; the model's and the inputs left out."""
    packed: dict[int, int] = {}
    alive = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        packed[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        model(*inputs)
    for tensor in (*weights_of(model).values(), *inputs):
        packed.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(packed.values())


@pytest.mark.parametrize("name", CASES)
def test_equal_to_what_autograd_packs(name: str) -> None:
    model, x, graph = case(name)
    predicted = annotate(out_of_place(graph), device("cpu"), {}, True)
    assert sum(s.n_bytes for s in saved_storages(predicted)) == really_saved(model, x)


def test_autocast_keeps_low_precision_copies() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.b(torch.relu(self.a(x)))

    model, x = Mixed(), torch.randn(5, 8)
    predicted = annotate(graph_of(model, x), device("cpu"), {}, True)
    assert sum(s.n_bytes for s in saved_storages(predicted)) == really_saved(model, x)


def test_relu_and_the_next_linear_share_one_storage() -> None:
    _, _, graph = case("mlp")
    storages = {s.label: s for s in saved_storages(annotate(graph, device("cpu"), {}, True))}
    relu = graph.ops[1].name
    assert storages[relu].ops == (1, 2)
    assert storages[relu].n_bytes == 5 * 16 * 4


def test_a_saved_view_keeps_its_whole_base() -> None:
    class Half(nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return (x * 2)[:, :2] * self.scale

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

    graph = graph_of(Half(), torch.randn(5, 8), torch.randn(1))
    (storage,) = saved_storages(annotate(graph, device("cpu"), {}, True))
    assert storage.n_bytes == 5 * 8 * 4


def test_dropout_s_mask_is_boolean_on_a_gpu() -> None:
    _, _, graph = case("block dropout")
    sizes = {}
    for name in ("cpu", "A100"):
        ops = annotate(graph, device(name), {}, True).ops
        (cost,) = (op.cost for op in ops if op.target == "aten.dropout.default")
        assert cost is not None
        sizes[name] = sum(saved.n_bytes for saved in cost.saved)
    assert sizes["cpu"] == 4 * sizes["A100"]


def test_inference_keeps_nothing() -> None:
    _, _, graph = case("block")
    costed = annotate(graph, device("cpu"), {}, False)
    assert saved_storages(costed) == ()
    assert not any(value.requires_grad for op in costed.ops for value in op.results)
