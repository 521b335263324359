from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagecut.report.units import bytes_text, flops_text, percent_text, seconds_text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (1024**2 - 1, "1.00 MiB"),
        (80e9, "74.5 GiB"),
        (350 * 1024**3, "350 GiB"),
        (math.inf, "no limit"),
    ],
)
def test_bytes(n_bytes: float, text: str) -> None:
    assert bytes_text(n_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0"),
        (4.2e-9, "4.20 ns"),
        (5e-6, "5.00 µs"),
        (0.0123, "12.3 ms"),
        (0.99999, "1.00 s"),
        (125, "125 s"),
        (math.inf, "∞"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_flops_and_percent() -> None:
    assert flops_text(0) == "0"
    assert flops_text(12) == "12 FLOP"
    assert flops_text(4.5e11) == "450 GFLOP"
    assert percent_text(0.0123) == "1.23%"
    assert percent_text(0.158) == "15.8%"
    assert percent_text(math.inf) == "∞"


SCALES = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


@given(st.floats(min_value=1e-9, max_value=999))
def test_seconds_keep_three_digits(seconds: float) -> None:
    number, unit = seconds_text(seconds).split()
    assert float(number) * SCALES[unit] == pytest.approx(seconds, rel=5.1e-3)
    assert 1 <= float(number) < 1000


@given(st.integers(min_value=0, max_value=2**59))
def test_bytes_keep_three_digits(n_bytes: int) -> None:
    number, unit = bytes_text(n_bytes).split()
    power = ("B", "KiB", "MiB", "GiB", "TiB", "PiB").index(unit)
    assert float(number) * 1024**power == pytest.approx(n_bytes, rel=5.1e-3)
    assert float(number) < 1024
