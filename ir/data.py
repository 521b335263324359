"""Frozen dataclasses to plain JSON data and back, by their type hints."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from stagecut.ir.errors import PlanError

T = TypeVar("T")


def to_data(value: Any) -> Any:
    """Plain data: dataclasses become dicts, tuples lists; infinities become strings."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_data(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple | list):
        return [to_data(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    return value


def from_data(kind: type[T], data: Any) -> T:
    """The value of type `kind` that `to_data` turned into `data`.

    Raises:
        PlanError: a field is missing, unknown, or not of its type; the message names it.
    """
    built: T = _build(kind, data, kind.__name__)
    return built


@lru_cache(maxsize=128)
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _build(kind: Any, data: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if data is None:
            return None
        (kind,) = [a for a in arguments if a is not type(None)]
        return _build(kind, data, where)
    if origin is tuple:
        return _tuple(arguments, data, where)
    if isinstance(kind, type) and is_dataclass(kind):
        return _record(kind, data, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if kind is float and isinstance(data, int | float | str) and not isinstance(data, bool):
        return float(data)
    if isinstance(kind, type) and not isinstance(data, kind):
        raise PlanError(f"{where} is {data!r}, expected {kind.__name__}")
    return data


def _tuple(arguments: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise PlanError(f"{where} is {data!r}, expected a list")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_build(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if len(arguments) != len(data):
        raise PlanError(f"{where} has {len(data)} items, expected {len(arguments)}")
    pairs = enumerate(zip(arguments, data, strict=True))
    return tuple(_build(kind, item, f"{where}[{i}]") for i, (kind, item) in pairs)


def _record(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise PlanError(f"{where} is {data!r}, expected a table")
    hints = _hints(kind)
    names = {f.name for f in fields(kind)}
    if wrong := sorted(names ^ set(data)):
        raise PlanError(f"{where} has fields missing or unknown: {', '.join(wrong)}")
    return kind(**{name: _build(hints[name], data[name], f"{where}.{name}") for name in names})
