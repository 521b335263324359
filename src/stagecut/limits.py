"""Memory limits as people write them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stagecut.ir.errors import ArgumentError

_UNITS = {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")

Limit = float | str


def parse_limit(limit: Limit | Sequence[Limit] | None) -> float | list[float] | None:
    """Bytes of a limit or of one limit a device.

    Raises:
        ArgumentError: it is no positive number of bytes and not written like `"24GiB"`.
    """
    if limit is None:
        return None
    if isinstance(limit, str | int | float):  # a bool too, which is refused below
        return _bytes(limit)
    return [_bytes(one) for one in limit]


def _bytes(limit: Limit) -> float:
    match = _SIZE.fullmatch(limit) if isinstance(limit, str) else None
    if match and match.group(2).upper() in _UNITS:
        size = float(match.group(1)) * _UNITS[match.group(2).upper()]
    elif isinstance(limit, int | float) and not isinstance(limit, bool):
        size = float(limit)
    else:
        raise ArgumentError(f'memory_limit is {limit!r}; give bytes, or a size like "24GiB"')
    if not size > 0:
        raise ArgumentError(f"memory_limit is {limit!r}; give a size above 0")
    return size
