"""Values of every kind across cuts, and modules used in every way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.codegen.running import assert_trains_alike, mean_square, pipe_of

D = 6


def layers(n: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(D, D) for _ in range(n))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = layers(4)


class Complex(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        waves = torch.fft.fft(self.l[0](x))
        h = torch.tanh(self.l[1](x))
        return self.l[3](torch.tanh(self.l[2](h)) + torch.fft.ifft(waves * h).real)


class Scalars(Base):
    """Zero-dimensional values, an auxiliary loss summed over layers."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        penalty = x.new_zeros(())
        for layer in self.l:
            x = torch.tanh(layer(x))
            penalty = penalty + x.abs().mean()
        return {"out": x, "penalty": penalty}


class Empty(Base):
    """A tensor without elements crosses."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.l[0](x)
        none = h[:, :0]
        for layer in self.l[1:]:
            h = torch.tanh(layer(h))
        return torch.cat([none, h], dim=1)


class Boolean(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keep, index = x > 0, x.argmax(dim=1)
        for layer in self.l:
            x = torch.tanh(layer(x)) * keep
        return x.gather(1, index.unsqueeze(1))


class Strided(Base):
    """Transposed, expanded and sliced values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.l[0](x).t()
        wide = h[:, :1].expand(-1, x.shape[0])
        h = self.l[1](h.t()).t() + wide
        h = self.l[2](h.t())[:, ::2]
        return self.l[3](torch.cat([h, h], dim=1))


class InPlaceView(Base):
    """Writes into a slice of a value that others read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.l[0](x) * 1.0
        h[:, :2] += 1.0
        h = torch.tanh(self.l[1](h)) * 1.0
        h.neg_().mul_(2.0)
        return self.l[3](torch.tanh(self.l[2](h)))


class EarlyOutput(Base):
    """Made in the first stage, returned and used by the loss."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        first = self.l[0](x)
        h = torch.tanh(first)
        for layer in self.l[1:]:
            h = torch.tanh(layer(h))
        return first, h, x


class Twice(Base):
    """One module called at the start and at the end."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.l[0](x))
        h = torch.tanh(self.l[1](h))
        return self.l[0](torch.tanh(self.l[2](h))) + self.l[1](x)


class Unused(Base):
    """A layer that nothing reads, and one whose result is dropped."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.l[2](x)
        return self.l[3](torch.tanh(self.l[1](torch.tanh(self.l[0](x)))))


class Frozen(Base):
    """Whole stages without anything to train, before and between."""

    def __init__(self) -> None:
        super().__init__()
        self.l.requires_grad_(False)
        self.l[2].requires_grad_(True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.l:
            x = torch.tanh(layer(x))
        return x


class Names(nn.Module):
    """Names that are Python's, and that generated code uses itself."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("buffer", "parameter", "place", "lambda", "0", "class", "device", "tie"):
            self.add_module(name, nn.Linear(D, D))
        self.register_parameter("del", nn.Parameter(torch.ones(D)))

    def forward(self, torch_: torch.Tensor) -> torch.Tensor:
        h = torch_ * getattr(self, "del")
        for child in self.children():
            h = torch.tanh(child(h))
        return h


class Pair(NamedTuple):
    left: torch.Tensor
    right: list[torch.Tensor | None]


class Container(Base):
    def forward(self, x: torch.Tensor) -> Pair:
        h = self.l[1](torch.tanh(self.l[0](x)))
        return Pair(h, [self.l[2](h), None])


class WrittenLater(Base):
    """A view taken before its base is written, whole and in part."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.l[0](x)
        left, side = h[:, :2], torch.tanh(self.l[1](x))
        h.add_(1.0)
        h[:, 3:].mul_(2.0)
        h = h.sum(1, keepdim=True) + left.sum(1, keepdim=True)
        return self.l[3](torch.tanh(self.l[2](side)) * h)


class WrittenThrough(Base):
    """Every layer's result is written through a view, and by what the view shows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.l:
            x = layer(x)
            flat = x.view(-1)
            flat.mul_(0.5)
            x = torch.tanh(x) * 1.0
            x.mul_(flat[0])
        return x


class TwiceWritten(Base):
    """One batch norm called at two places: it moves its statistics twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.l[0](x))
        h = self.norm(self.l[2](torch.tanh(self.l[1](h))))
        h = torch.tanh(self.l[3](torch.tanh(h)))
        return torch.sigmoid(h @ self.l[3].weight)


class WithoutGradient(Base):
    """Floating values that no gradient goes through, used by later layers beside others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.l[0](x))
        scale, norm = h.detach(), h.detach().norm(dim=1, keepdim=True)
        for layer in self.l[1:]:
            h = torch.tanh(layer(h)) * scale + norm
        return h


class OutputWritten(Base):
    """Outputs made early and written later, a view and its base among them."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.l[0](x)
        part, y = h[:, :2], torch.tanh(self.l[1](x))
        part.mul_(3.0)
        h.add_(1.0)
        return {"part": part, "h": h, "y": self.l[3](torch.tanh(self.l[2](y)))}


KINDS: dict[str, type[nn.Module]] = {
    kind.__name__: kind
    for kind in (
        Complex, Scalars, Empty, Boolean, Strided, InPlaceView, EarlyOutput, Twice, Unused,
        Frozen, Container, WrittenLater, WrittenThrough, TwiceWritten, WithoutGradient,
        OutputWritten,
    )
}  # fmt: skip


@pytest.mark.parametrize("n_stages", [2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_trains_alike(kind: str, n_stages: int) -> None:
    model = KINDS[kind]()
    assert_trains_alike(model, {"x": torch.randn(4, D)}, n_stages, method="uniform")


def test_a_stage_may_begin_by_writing_what_it_received() -> None:
    """A received value is a leaf, which autograd lets nobody write."""

    class Writes(nn.Module):
        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return h.mul_(2.0).add_(h.detach())

    model = nn.Sequential(nn.Linear(D, D), Writes(), nn.Linear(D, D), Writes(), nn.Linear(D, D))
    pins = {"0": 0, "1": 1, "2": 1, "3": 2, "4": 2}
    assert_trains_alike(model, {"input": torch.randn(4, D)}, 3, pins=pins)


def test_an_input_that_forward_writes_is_the_callers_as_in_the_model() -> None:
    class Writes(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.mul_(2.0)
            return self.l[2](torch.tanh(self.l[1](torch.tanh(self.l[0](x)))))

    model, example, x = Writes(), torch.randn(4, D), torch.randn(4, D)
    before, own = example.clone(), x.clone()
    pipe = pipe_of(model, {"x": example}, 2)
    assert torch.equal(example, before)
    torch.testing.assert_close(pipe.train_step(x), mean_square(model(own)).detach())
    assert torch.equal(x, own)


def test_no_gradient_goes_back_to_where_nothing_trains() -> None:
    pipe = pipe_of(Frozen(), {"x": torch.randn(4, D)}, 4, method="uniform")
    edges = [(e.source, e.destination, e.gradient) for e in pipe.program.edges]
    assert edges == [(0, 1, False), (1, 2, False), (2, 3, True)]


def test_a_table_that_lookups_renormalise() -> None:
    class Renormed(Base):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, D, max_norm=1.0)
            nn.init.constant_(self.table.weight, 5.0)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            h = self.table(ids)
            for layer in self.l:
                h = torch.tanh(layer(h))
            return h

    model, ids = Renormed(), torch.arange(8).view(4, 2)
    unsplit = copy.deepcopy(model)
    assert_trains_alike(model, {"ids": ids}, 2, method="uniform")
    unsplit(ids)
    torch.testing.assert_close(model.table.weight, unsplit.table.weight, rtol=0, atol=0)


@pytest.mark.parametrize("n_stages", [2, 4])
def test_names_that_code_uses_itself(n_stages: int) -> None:
    model = Names()
    pipe = assert_trains_alike(model, {"torch_": torch.randn(4, D)}, n_stages)
    assert set(pipe.state_dict()) == set(model.state_dict())


def test_the_output_container_keeps_its_type() -> None:
    model, x = Container(), torch.randn(4, D)
    pipe = pipe_of(model, {"x": x}, 2)
    pipe.eval()
    out = pipe(x)
    assert type(out) is Pair and out.right[1] is None
    torch.testing.assert_close(out.left, model(x).left)


def test_a_buffer_written_early_and_read_late_is_kept_together() -> None:
    class Counter(Base):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            h = torch.tanh(self.l[0](x))
            h = torch.tanh(self.l[1](h))
            return self.l[3](self.l[2](h)) * self.seen

    assert_trains_alike(Counter(), {"x": torch.randn(4, D)}, 2)


def test_inputs_in_containers_constants_and_none() -> None:
    class Nested(Base):
        def forward(
            self, batch: dict[str, Any], mask: torch.Tensor | None = None, scale: float = 1.0,
            *, flag: bool = False,
        ) -> torch.Tensor:  # fmt: skip
            h = self.l[0](batch["x"]) * scale + batch["more"][0]
            h = torch.tanh(self.l[1](h))
            return self.l[2](h) if flag and mask is None else h

    batch = {"x": torch.randn(4, D), "more": [torch.randn(4, D), None]}
    assert_trains_alike(Nested(), {"batch": batch, "scale": 0.5, "flag": True, "mask": None}, 2)


LOOSE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "interpolate": lambda h: F.interpolate(h[:, None], scale_factor=2.0)[:, 0, :],
    "sort": lambda h: h.sort(dim=1).values,
    "topk": lambda h: h.topk(3, dim=1)[0],
    "cumsum": lambda h: h.cumsum(0),
    "einsum": lambda h: torch.einsum("bi,bj->bij", h, h).flatten(1),
    "where": lambda h: torch.where(h > 0, h, torch.full_like(h, -2.0)),
    "scatter": lambda h: torch.zeros_like(h).scatter_add(1, h.argsort(1), h),
    "pad": lambda h: F.pad(h, (1, 1)),
    "unbind": lambda h: torch.stack(h.unbind(1)[::-1], 1),
    "one_hot": lambda h: F.one_hot(h.argmax(1), D).float() * h,
    "roll": lambda h: h.roll(1, 0),
    "lse": lambda h: torch.logsumexp(h, 1, keepdim=True) + h.softmax(-1),
    "median": lambda h: h - h.median(dim=1, keepdim=True).values,
    "infinity": lambda h: h.masked_fill(h < 0, float("-inf")).softmax(-1).nan_to_num(0.0),
}


@pytest.mark.parametrize("name", LOOSE)
def test_ops_of_many_kinds_between_layers(name: str) -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(D, D)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(LOOSE[name](torch.tanh(self.a(x)))) * 2.0

    assert_trains_alike(Around(), {"x": torch.randn(4, D)}, 2, mean_square, method="uniform")
