"""Arithmetic over size symbols: `4*s0`, `(s0 + 1)//2`, `Max(1, s0)`."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from stagecut.ir.errors import GraphError

Number = int | float | bool

_BINARY: Mapping[type, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
        ast.Pow: operator.pow,
    }
)
_COMPARE: Mapping[type, Callable[[Any, Any], bool]] = MappingProxyType(
    {
        ast.Eq: operator.eq,
        ast.NotEq: operator.ne,
        ast.Lt: operator.lt,
        ast.LtE: operator.le,
        ast.Gt: operator.gt,
        ast.GtE: operator.ge,
    }
)
# The functions that torch's symbolic shapes print by these names.
_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "Max": max,
        "Min": min,
        "Mod": operator.mod,
        "PythonMod": operator.mod,
        "FloorDiv": operator.floordiv,
        "CleanDiv": operator.floordiv,
        "CeilDiv": lambda a, b: -(-a // b),
        "IntTrueDiv": operator.truediv,
        "FloatTrueDiv": operator.truediv,
        "ToFloat": float,
        "TruncToInt": int,
        "FloorToInt": math.floor,
        "CeilToInt": math.ceil,
        "Abs": abs,
    }
)


@lru_cache(maxsize=4096)
def _parsed(expression: str) -> ast.expr:
    try:
        return ast.parse(expression, mode="eval").body
    except SyntaxError as error:
        raise GraphError(f"{expression!r} is not a size expression: {error.msg}") from error


@lru_cache(maxsize=4096)
def symbols_of(expression: str) -> frozenset[str]:
    """The symbols an expression reads."""
    nodes = list(ast.walk(_parsed(expression)))
    functions = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    return frozenset(n.id for n in nodes if isinstance(n, ast.Name) and id(n) not in functions)


def evaluate(expression: str, symbols: Mapping[str, int]) -> Number:
    """The value of `expression` where its symbols have the given sizes.

    Raises:
        GraphError: a symbol has no value, or the expression has a form unknown here.
    """
    return _value(_parsed(expression), symbols, expression)


def _value(node: ast.expr, symbols: Mapping[str, int], whole: str) -> Number:
    def inner(child: ast.expr) -> Number:
        return _value(child, symbols, whole)

    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name) if name in symbols:
            return symbols[name]
        case ast.Name(id=name):
            raise GraphError(f"the size {name} in {whole!r} has no value")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](inner(left), inner(right))  # type: ignore[no-any-return]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -inner(operand)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return _COMPARE[type(op)](inner(left), inner(right))
        case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*map(inner, args))  # type: ignore[no-any-return]
        case _:
            raise GraphError(f"cannot evaluate {ast.unparse(node)!r} in the size {whole!r}")
