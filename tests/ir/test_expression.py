from __future__ import annotations

import pytest

from stagecut.ir.errors import GraphError
from stagecut.ir.expression import evaluate, symbols_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4*s0", 12),
        ("(s0 + 1)//2", 2),
        ("Max(1, s0 - 5)", 1),
        ("Mod(s0, 2)", 1),
        ("-s0**2", -9),
        ("s0 > 2", True),
        ("IntTrueDiv(s0, 2)", 1.5),
        ("CeilToInt(IntTrueDiv(s0, 2))", 2),
    ],
)
def test_values(text: str, value: float) -> None:
    assert evaluate(text, {"s0": 3}) == value


def test_symbols() -> None:
    assert symbols_of("Max(s0, 2*s1)") == {"s0", "s1"}


@pytest.mark.parametrize("text", ["s9", "__import__('os')", "s0.real", "s0 +", "[s0]"])
def test_what_is_no_size_expression_is_refused(text: str) -> None:
    with pytest.raises(GraphError):
        evaluate(text, {"s0": 3})
