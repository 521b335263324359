"""What ops write, share and draw: the table against what torch does with real tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from stagecut.frontend import effects, trace
from stagecut.ir.graph import Op

aten = torch.ops.aten


def X() -> torch.Tensor:  # noqa: N802
    return torch.linspace(-1, 1, 24).reshape(2, 3, 4).clone()


def node_of(target: Any, args: tuple[Any, ...]) -> tuple[fx.Node, list[fx.Node]]:
    graph = fx.Graph()
    made: list[fx.Node] = []

    def enter(arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            made.append(graph.placeholder(f"t{len(made)}"))
            return made[-1]
        return arg

    return graph.call_function(target, tuple(map(enter, args))), made


def observed(target: Any, args: tuple[Any, ...]) -> tuple[set[int], set[int]]:
    """Which tensor arguments a call changes, and whose storage its results share."""
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    before = [t.clone() for t in tensors]
    out = target(*args)
    results = out if isinstance(out, tuple | list) else (out,)
    storages = {r.untyped_storage().data_ptr() for r in results if isinstance(r, torch.Tensor)}
    changed = {i for i, (t, b) in enumerate(zip(tensors, before, strict=True)) if not t.equal(b)}
    shared = {i for i, t in enumerate(tensors) if t.untyped_storage().data_ptr() in storages}
    return changed, shared


CALLS: list[tuple[Any, Callable[[], tuple[Any, ...]]]] = [
    # views
    (aten.view.default, lambda: (X(), [6, 4])),
    (aten.transpose.int, lambda: (X(), 0, 1)),
    (aten.select.int, lambda: (X(), 0, 1)),
    (aten.slice.Tensor, lambda: (X(), 1, 0, 2)),
    (aten.expand.default, lambda: (X(), [5, 2, 3, 4])),
    (aten.split.Tensor, lambda: (X(), 2, 2)),
    (aten.unbind.int, lambda: (X(), 0)),
    (aten.detach.default, lambda: (X(),)),
    (aten.alias.default, lambda: (X(),)),
    # views or copies, depending on strides, dtypes or flags
    (aten.reshape.default, lambda: (X(), [24])),
    (aten.reshape.default, lambda: (X().transpose(0, 1), [24])),
    (aten.contiguous.default, lambda: (X(),)),
    (aten.contiguous.default, lambda: (X().transpose(0, 1),)),
    (aten.flatten.using_ints, lambda: (X(), 1)),
    (aten.chunk.default, lambda: (X(), 2)),
    (aten.to.dtype, lambda: (X(), torch.float32)),
    (aten.to.dtype, lambda: (X(), torch.float64)),
    (aten.expand_as.default, lambda: (X(), X())),
    (aten.dropout.default, lambda: (X(), 0.5, False)),
    (aten.dropout.default, lambda: (X(), 0.0, True)),
    (aten.dropout.default, lambda: (X(), 0.5, True)),
    (aten.squeeze.default, lambda: (X(),)),
    (aten.broadcast_to.default, lambda: (X(), [2, 3, 4])),
    (aten.tensor_split.sections, lambda: (X(), 2)),
    (aten.unflatten.int, lambda: (X(), 2, [2, 2])),
    (aten.movedim.int, lambda: (X(), 0, 1)),
    (aten.real.default, lambda: (X(),)),
    (aten.pad.default, lambda: (X(), [0, 0])),
    (aten.narrow.default, lambda: (X(), 1, 0, 2)),
    (aten.type_as.default, lambda: (X(), X())),
    (aten.alpha_dropout.default, lambda: (X(), 0.5, False)),
    (aten.feature_dropout.default, lambda: (X(), 0.5, False)),
    # in place
    (aten.add_.Tensor, lambda: (X(), X())),
    (aten.relu_.default, lambda: (X(),)),
    (aten.masked_fill_.Scalar, lambda: (X(), X() > 0, 3.0)),
    (aten.index_put_.default, lambda: (X(), [torch.tensor([0])], torch.zeros(3, 4))),
    (aten.copy_.default, lambda: (X(), torch.zeros(4))),
    (aten.zero_.default, lambda: (X(),)),
    (aten.dropout_.default, lambda: (X(), 0.5, True)),
    # out=
    (aten.add.out, None),  # type: ignore[list-item]
    # statistics that no schema mentions
    (aten.batch_norm.default, lambda: (X(), None, None, torch.zeros(3), torch.ones(3), True,
                                       0.1, 1e-5, False)),
    (aten.batch_norm.default, lambda: (X(), None, None, torch.zeros(3), torch.ones(3), False,
                                       0.1, 1e-5, False)),
    (aten.instance_norm.default, lambda: (X(), None, None, torch.zeros(3), torch.ones(3), True,
                                          0.1, 1e-5, False)),
    (aten._batch_norm_impl_index.default, lambda: (X(), None, None, torch.zeros(3),
                                                   torch.ones(3), True, 0.1, 1e-5, False)),
    # renormalises rows of the table it reads
    (aten.embedding_renorm_.default, lambda: (5 * X()[0], torch.tensor([0, 1]), 1.0, 2.0)),
    # neither
    (aten.add.Tensor, lambda: (X(), X())),
    (aten.linear.default, lambda: (X(), torch.ones(2, 4))),
    (aten.layer_norm.default, lambda: (X(), [4])),
    (aten.cat.default, None),  # type: ignore[list-item]
]  # fmt: skip
GIVEN = [(target, make) for target, make in CALLS if make is not None]


@pytest.mark.parametrize(("target", "make"), GIVEN, ids=[str(t) for t, _ in GIVEN])
def test_nothing_happens_that_the_table_does_not_say(
    target: Any, make: Callable[[], tuple[Any, ...]]
) -> None:
    torch.manual_seed(0)
    args = make()
    node, leaves = node_of(target, args)
    changed, shared = observed(target, args)
    assert changed <= {leaves.index(n) for n in effects.mutated(node)}
    assert shared <= {leaves.index(n) for n in effects.aliased(node)}


def test_an_out_argument_is_written() -> None:
    graph = fx.Graph()
    a, b, out = (graph.placeholder(name) for name in ("a", "b", "out"))
    node = graph.call_function(aten.add.out, (a, b), {"out": out})
    assert effects.mutated(node) == [out] and effects.aliased(node) == [out]


@pytest.mark.parametrize(
    ("target", "args", "random"),
    [
        (aten.dropout.default, (X(), 0.5, True), True),
        (aten.dropout.default, (X(), 0.0, True), False),
        (aten.dropout.default, (X(), 0.5, False), False),
        (aten.scaled_dot_product_attention.default, (X(), X(), X(), None, 0.1), True),
        (aten.scaled_dot_product_attention.default, (X(), X(), X()), False),
        (aten.rrelu.default, (X(), 0.1, 0.3, True), True),
        (aten.rrelu.default, (X(), 0.1, 0.3, False), False),
        (aten.rand_like.default, (X(),), True),
        (aten.bernoulli.default, (X().abs(),), True),
        (aten.normal_.default, (X(),), True),
        (aten.multinomial.default, (X()[0].abs(), 2), True),
        (aten.add.Tensor, (X(), X()), False),
    ],
    ids=str,
)
def test_random_means_that_the_generator_moves(target: Any, args: Any, random: bool) -> None:
    node, _ = node_of(target, args)
    before = torch.get_rng_state()
    target(*args)
    assert effects.draws(node) == random == (not torch.equal(before, torch.get_rng_state()))


def ops(model: nn.Module, *args: torch.Tensor) -> dict[str, Op]:
    return {op.target: op for op in trace(model, args).graph.ops}


def test_running_statistics_are_written_by_name() -> None:
    found = ops(nn.Sequential(nn.BatchNorm1d(4)), torch.randn(3, 4))
    assert found["aten.batch_norm.default"].effects.mutates == ("0.running_mean", "0.running_var")
    counting = found["aten.add_.Tensor"]
    assert counting.effects.mutates == ("0.num_batches_tracked",)


def test_an_embedding_with_max_norm_writes_its_table() -> None:
    class Renormed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(5 * torch.ones(4, 2))

        def forward(self, i: torch.Tensor) -> torch.Tensor:
            return F.embedding(i, self.table, max_norm=1.0)

    found = {op.name: op for op in trace(Renormed(), (torch.tensor([0, 1]),)).graph.ops}
    (renorm,) = (op for op in found.values() if "renorm_" in op.target)
    (written,) = renorm.effects.mutates
    assert found[written].effects.aliases == ("table",)
