"""Symbolic sizes: torch's private SymInt.node, and the names and ranges made of it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from torch import nn

import stagecut
from stagecut.frontend import trace
from stagecut.frontend.symbols import depends_on_data, dim_of, type_of
from stagecut.frontend.tracing import renamed
from stagecut.ir.errors import ArgumentError
from stagecut.ir.graph import Graph, Input, Range, Value
from stagecut.ir.types import ScalarType, SymbolicDim, TensorType
from tests.codegen.running import mean_square, pipe_of


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.head(self.embed(ids))
        return h.reshape(ids.shape[0], 2 * ids.shape[1], 4)


def sizes_of(program: torch.export.ExportedProgram) -> tuple[torch.SymInt, ...]:
    node = next(n for n in program.graph.nodes if n.name == "x")
    return tuple(node.meta["val"].shape)


def exported() -> torch.export.ExportedProgram:
    class Half(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[: x.shape[0] // 2]

    return torch.export.export(
        Half(), (torch.ones(6, 4),), dynamic_shapes={"x": {0: torch.export.Dim.AUTO}}
    )


def test_what_we_use_of_torchs_private_symbols_is_there() -> None:
    rows, columns = sizes_of(exported())
    assert isinstance(rows, torch.SymInt) and columns == 4
    assert str(rows.node.expr).startswith("s") and rows.node.has_hint() and rows.node.hint == 6
    assert not depends_on_data(rows)


def test_types_of_traced_values() -> None:
    program = exported()
    rows, _ = sizes_of(program)
    dim = dim_of(rows)
    assert isinstance(dim, SymbolicDim) and dim.hint == 6
    assert dim_of(rows // 2) == SymbolicDim(f"({dim.expression}//2)", 3)
    assert type_of(rows + 1) == ScalarType("int", f"{dim.expression} + 1", 7)
    assert type_of(2.5) == ScalarType("float", "2.5", 2.5)
    assert type_of(torch.ones(2, dtype=torch.bool)) == TensorType((2,), "bool")


def test_symbols_are_numbered_in_order_of_appearance() -> None:
    a, b = (SymbolicDim(s, 2) for s in ("s77", "s3"))
    both = SymbolicDim("s3*s77", 4)
    values = [Value("x", TensorType((a, both), "f")), Value("y", TensorType((b,), "f"))]
    graph = Graph("G", tuple(Input(v.name, v) for v in values), (), (), (),
                  ranges=(Range("s3", 1, None), Range("s77", 1, 9)))  # fmt: skip
    new = renamed(graph)
    assert [str(i.value.type) for i in new.inputs if i.value] == ["f[s0=2, s1*s0=4]", "f[s1=2]"]
    assert new.ranges == (Range("s0", 1, 9), Range("s1", 1, None))
    assert renamed(new) == new


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("length", [3, 6, 11])
def test_rows_and_lengths_may_change_from_step_to_step(rows: int, length: int) -> None:
    model = Doubled()
    pipe = pipe_of(model, {"ids": torch.randint(0, 20, (2, 6))}, 2)
    ids = torch.randint(0, 20, (rows, length))
    torch.testing.assert_close(pipe.train_step(ids), mean_square(model(ids)).detach())


def test_one_row_in_the_example_does_not_freeze_the_batch() -> None:
    graph = trace(Doubled(), (torch.randint(0, 20, (1, 6)),)).graph
    assert str(graph.inputs[0].value.type) == "i64[s0=1, s1=6]"  # type: ignore[union-attr]
    assert graph.ranges[0] == Range("s0", 1, None)


class Picky(nn.Module):
    """Tests sizes in Python."""

    def __init__(self, test: str) -> None:
        super().__init__()
        self.a, self.test = nn.Linear(4, 4), test

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length = x.shape[:2]
        if eval(self.test, {"rows": rows, "length": length}):
            x = 2 * x
        return self.a(x)


def test_a_range_of_rows_is_recorded_and_checked() -> None:
    model = Picky("rows > 3")
    plan = stagecut.partition(model, 1, (torch.randn(6, 4, 4),), n_microbatches=2)
    assert plan.data.graph.ranges[0] == Range("s0", 4, None)
    assert "micro-batches of 4 to any number of rows" in " ".join(str(plan).split())
    pipe = stagecut.pipeline(plan, model, loss_fn=mean_square, runtime="local")
    pipe.train_step(torch.randn(8, 4, 4))
    with pytest.raises(ArgumentError, match="the size s0 is 3, the model was traced for 4 to any"):
        pipe.train_step(torch.randn(6, 4, 4))


def test_another_test_on_rows_narrows_them_to_what_was_traced() -> None:
    graph = trace(Picky("rows % 2 == 0"), (torch.randn(6, 4, 4),)).graph
    assert graph.ranges[0] == Range("s0", 6, 6)
    line = Picky.forward.__code__.co_firstlineno + 2
    where = f"x.shape[0] % 2) == 0` at tests/frontend/test_symbols.py:{line}"
    assert any(where in note for note in graph.notes)


def test_len_fixes_the_rows_and_the_plan_says_where() -> None:
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x) + x.new_zeros(len(x), 6)

    (note,) = trace(Asks(), (torch.randn(4, 6),)).graph.notes
    assert "4 to 4 rows" in note and "test_symbols.py:" in note and "shape[0] leaves it" in note


def test_a_test_on_a_length_keeps_the_examples() -> None:
    graph = trace(Picky("length % 2 == 0"), (torch.randn(6, 4, 4),)).graph
    assert str(graph.inputs[0].value.type) == "f32[s0=6, 4, 4]"  # type: ignore[union-attr]
    line = Picky.forward.__code__.co_firstlineno + 2
    where = f"x.shape[1] % 2) == 0` at tests/frontend/test_symbols.py:{line}"
    assert any(where in note for note in graph.notes)


class Needs(nn.Module):
    """Needs a size as a number, in one of the ways there are."""

    ways: ClassVar[dict[str, Callable[[torch.Tensor, int], torch.Tensor]]] = {
        "sqrt": lambda h, n: h / math.sqrt(n),
        "log2": lambda h, n: h / math.log2(n + 1),
        "int": lambda h, n: h / int(n),
        "float": lambda h, n: h * float(n),
        "range": lambda h, n: h + sum(i for i in range(n)),
        "list": lambda h, n: h + torch.tensor([1.0] * n).sum(),
        "equal": lambda h, n: h + 1 if n == 7 else h,
    }

    def __init__(self, way: str, dimension: int) -> None:
        super().__init__()
        self.a, self.way, self.dimension = nn.Linear(4, 4), way, dimension

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ways[self.way](self.a(x), x.shape[self.dimension])


@pytest.mark.parametrize("way", Needs.ways)
def test_what_fixes_a_size_is_told_with_its_line(way: str) -> None:
    line = rf"test_symbols.py:{Needs.ways[way].__code__.co_firstlineno}\b"
    (note,) = trace(Needs(way, 1), (torch.randn(3, 7, 4),)).graph.notes
    assert re.fullmatch(rf"the model fixes lengths of its inputs: 7 at .*{line}", note)
    (note,) = trace(Needs(way, 0), (torch.randn(7, 5, 4),)).graph.notes
    assert re.search(rf"7 to 7 rows, because the model tests .* at .*{line}", note)


def test_where_a_size_cannot_be_left_open_the_line_is_told() -> None:
    class Writes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * len(f"{x.shape[1]:04d}")

    (note,) = trace(Writes(), (torch.randn(3, 7, 4),)).graph.notes
    line = Writes.forward.__code__.co_firstlineno + 1
    assert note.endswith(
        f"tracing others failed at tests/frontend/test_symbols.py:{line}, in forward"
    )


def test_what_torch_computes_with_a_size_leaves_it_open() -> None:
    class Scales(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * x.shape[1] ** 0.5 + math.ceil(x.shape[1] / 2)

    assert not trace(Scales(), (torch.randn(3, 7, 4),)).graph.notes


def test_a_size_that_an_op_fixes_has_no_line() -> None:
    class Places(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places = nn.Parameter(torch.zeros(7, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.places

    notes = trace(Places(), (torch.randn(3, 7, 4),)).graph.notes
    assert notes == ("the model fixes lengths of its inputs: 7",)
