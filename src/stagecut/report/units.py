"""Figures as people read them: KiB and GiB, µs and ms, GFLOP, at three significant digits."""

from __future__ import annotations

import math

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_FLOPS = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"))


def bytes_text(n_bytes: float) -> str:
    """`1536` as `1.50 KiB`; whole bytes below one KiB."""
    if math.isinf(n_bytes):
        return "no limit"
    power = 0
    while abs(n_bytes) >= _ROUNDS_UP * 1024 ** (power + 1) and power < len(_BYTES) - 1:
        power += 1
    if power == 0:
        return f"{n_bytes:.0f} B"
    return f"{_three_digits(n_bytes / 1024**power)} {_BYTES[power]}"


def seconds_text(seconds: float) -> str:
    """`0.0123` as `12.3 ms`; a zero stays a plain `0`."""
    if seconds == 0 or not math.isfinite(seconds):
        return "0" if seconds == 0 else "∞"
    for scale, unit in _SECONDS:
        if abs(seconds) >= scale * _ROUNDS_UP:
            return f"{_three_digits(seconds / scale)} {unit}"
    return f"{_three_digits(seconds / 1e-9)} ns"


def flops_text(flops: float) -> str:
    """`4.5e11` as `450 GFLOP`; a zero stays a plain `0`."""
    for scale, unit in _FLOPS:
        if abs(flops) >= scale * _ROUNDS_UP:
            return f"{_three_digits(flops / scale)} {unit}"
    return f"{flops:.0f} FLOP" if flops else "0"


def percent_text(share: float) -> str:
    """`0.0123` as `1.23%`."""
    if math.isinf(share):
        return "∞"
    return f"{share:.2%}" if abs(share) < 0.1 else f"{share:.1%}"


_ROUNDS_UP = 0.9995
"""From this share of a unit on, three digits would print 1000 of the unit below."""


def _three_digits(number: float) -> str:
    size = abs(number)
    decimals = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{number:.{decimals}f}"
