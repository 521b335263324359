"""Text to graph: the inverse of the printer, by recursive descent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stagecut.ir.cost import Cost, Saved, Work
from stagecut.ir.graph import (
    Arg,
    Autocast,
    ByMode,
    Context,
    Effects,
    GradMode,
    Graph,
    Input,
    Literal_,
    Mode,
    Op,
    Range,
    Recompute,
    Ref,
    StageDevice,
    TorchConstant,
    Value,
    Weight,
    WeightRef,
)
from stagecut.ir.text.scanner import Scanner
from stagecut.ir.types import Dim, ScalarType, SymbolicDim, TensorType, Type, long_dtype

_NAME = r"[A-Za-z_]\w*"
_TARGET = r"[A-Za-z_][\w.:]*"
_WEIGHT = r"[\w.]+"
_NUMBER = r"-?(?:inf|nan|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?:j)?"
_COMPLEX = r"\([^()]*j\)"


def parse_graph(text: str) -> Graph:
    """The graph that prints as `text`.

    Raises:
        GraphError: with the line and the place where the text stops making sense.
    """
    scan = Scanner(text)
    scan.expect("graph")
    scan.expect("@")
    graph = Graph(scan.need(_NAME, "the graph's name"), (), (), (), ())
    inputs = tuple(scan.list_of(lambda: _input(scan), "(", ")"))
    scan.expect("{")
    weights: list[Weight] = []
    while scan.match(r"weight\b"):
        weights.append(_weight(scan))
    ops: list[Op] = []
    while not scan.match(r"return\b"):
        ops.append(_op(scan))
    outputs = tuple(scan.list_of(lambda: parse_arg(scan), "(", ")"))
    graph = replace(graph, inputs=inputs, weights=tuple(weights), ops=tuple(ops), outputs=outputs)
    return _trailer(scan, graph)


def parse_arg(scan: Scanner) -> Arg:
    """One argument."""
    if scan.take("%"):
        return Ref(scan.need(_NAME, "a value's name"))
    if scan.take("@"):
        return WeightRef(_weight_name(scan))
    if scan.text.startswith("[", scan.position):
        return tuple(scan.list_of(lambda: parse_arg(scan)))
    if scan.match(r"stage_device\b"):
        return StageDevice()
    if scan.take("torch."):
        return TorchConstant(scan.need(r"\w+", "a torch constant"))
    if scan.match(r"mode\b"):
        train, evaluation = scan.list_of(lambda: _literal(scan), "(", ")")
        return ByMode(train, evaluation)  # type: ignore[arg-type]
    return _literal(scan)


def _literal(scan: Scanner) -> Literal_:
    if scan.text.startswith('"', scan.position):
        return scan.string()
    words: dict[str, Literal_] = {"none": None, "true": True, "false": False}
    if word := scan.match(r"(?:none|true|false)\b"):
        return words[word]
    if number := scan.match(_COMPLEX):
        return complex(number)
    number = scan.need(_NUMBER, "an argument")
    if number.endswith("j"):
        return complex(number)
    return float(number) if any(c in number for c in ".eEnf") else int(number)


def _weight_name(scan: Scanner) -> str:
    if scan.text.startswith('"', scan.position):
        return scan.string()
    return scan.need(_WEIGHT, "a weight's name")


def _type(scan: Scanner) -> Type:
    name = scan.need(r"\w+", "a type")
    if scan.take("["):
        dims = _split(scan.until("]"))
        return TensorType(tuple(_dim(scan, dim) for dim in dims), long_dtype(name))
    scan.expect("(")
    expression, hint = scan.until(")").rsplit("=", 1)
    value = {"True": True, "False": False}.get(hint)
    if value is None:
        value = float(hint) if name == "float" else int(hint)  # type: ignore[assignment]
    return ScalarType(name, expression, value)  # type: ignore[arg-type]


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _dim(scan: Scanner, text: str) -> Dim:
    expression, equals, hint = text.rpartition("=")
    if not hint.strip().isdigit():
        raise scan.error(f"{text!r} is not a dimension: write 8, or s0=8")
    return SymbolicDim(expression, int(hint)) if equals else int(hint)


def _value(scan: Scanner) -> Value:
    scan.expect("%")
    name = scan.need(_NAME, "a value's name")
    scan.expect(":")
    kind = _type(scan)
    return Value(name, kind, scan.match(r"grad\b") is not None)


def _attributes(scan: Scanner, readers: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def attribute() -> None:
        key = scan.need(_NAME, "an attribute")
        scan.expect("=")
        if key not in readers:
            raise scan.error(f"unknown attribute {key!r}; known: {', '.join(readers)}")
        found[key] = readers[key]()

    if scan.text.startswith("{", scan.position):
        scan.list_of(attribute, "{", "}")
    return found


def _input(scan: Scanner) -> Input:
    constant: Literal_ = None
    value = None
    if scan.text.startswith("%", scan.position):
        value = _value(scan)
    else:
        constant = _literal(scan)
    readers = {"path": scan.string, "split": lambda: int(scan.need(r"\d+", "a dimension"))}
    found = _attributes(scan, readers)
    return Input(found.get("path", ""), value, found.get("split"), constant)


def _weight(scan: Scanner) -> Weight:
    scan.expect("@")
    name = _weight_name(scan)
    scan.expect(":")
    kind = _type(scan)
    if not isinstance(kind, TensorType):
        raise scan.error(f"weight {name} is not a tensor")
    role = scan.need(r"parameter|buffer|constant", "parameter, buffer or constant")
    trainable = scan.match(r"trainable\b") is not None
    persistent = scan.match(r"unsaved\b") is None
    found = _attributes(scan, {"aliases": lambda: tuple(scan.list_of(scan.string))})
    aliases = found.get("aliases", ())
    return Weight(name, kind, role, trainable, persistent, aliases)  # type: ignore[arg-type]


def _op(scan: Scanner) -> Op:
    results: tuple[Value, ...] = ()
    sequence = scan.text.startswith("(", scan.position)
    if sequence:
        results = tuple(scan.list_of(lambda: _value(scan), "(", ")"))
        scan.expect("=")
    elif scan.text.startswith("%", scan.position):
        results = (_value(scan),)
        scan.expect("=")
    target = scan.need(_TARGET, "an op's target")
    args, kwargs = _arguments(scan)
    found = _op_attributes(scan)
    effects = Effects(
        found.get("mutates", ()), found.get("aliases", ()), found.get("random", False)
    )
    name = found.get("name", results[0].name if results else "")
    return Op(
        name, target, args, kwargs, results, sequence, found.get("scope", ""),
        found.get("source", ""), found.get("context", ()), effects, found.get("cost"),
    )  # fmt: skip


def _arguments(scan: Scanner) -> tuple[tuple[Arg, ...], tuple[tuple[str, Arg], ...]]:
    args: list[Arg] = []
    kwargs: list[tuple[str, Arg]] = []

    def argument() -> None:
        keyword = scan.match(_NAME + r"(?==)")
        if keyword is None:
            args.append(parse_arg(scan))
        else:
            scan.expect("=")
            kwargs.append((keyword, parse_arg(scan)))

    scan.list_of(argument, "(", ")")
    return tuple(args), tuple(kwargs)


def _op_attributes(scan: Scanner) -> dict[str, Any]:
    def strings() -> tuple[str, ...]:
        return tuple(scan.list_of(scan.string))

    return _attributes(
        scan,
        {
            "name": scan.string,
            "scope": scan.string,
            "source": scan.string,
            "context": lambda: tuple(scan.list_of(lambda: _context(scan))),
            "mutates": strings,
            "aliases": strings,
            "random": lambda: _literal(scan),
            "cost": lambda: _cost(scan),
        },
    )


def _context(scan: Scanner) -> Context:
    kind = scan.need(r"grad|autocast|recompute|training", "a region")
    fields: list[Any] = scan.list_of(lambda: _literal(scan), "(", ")")
    kinds: dict[str, Callable[..., Context]] = {
        "grad": GradMode,
        "autocast": Autocast,
        "recompute": Recompute,
        "training": Mode,
    }
    return kinds[kind](*fields)


def _cost(scan: Scanner) -> Cost:
    forward, backward_input, backward_weight, saved, shares, workspace, origin = _nested(scan)
    return Cost(
        Work(*forward), Work(*backward_input), Work(*backward_weight),
        tuple(Saved(*item) for item in saved), tuple(shares), workspace, origin,
    )  # fmt: skip


def _nested(scan: Scanner) -> Any:
    if scan.text.startswith("[", scan.position):
        return scan.list_of(lambda: _nested(scan))
    return _literal(scan)


def _trailer(scan: Scanner, graph: Graph) -> Graph:
    ranges: list[Range] = []
    notes: list[str] = []
    while not scan.take("}"):
        word = scan.need(r"range|training|inputs|outputs|note|parameters", "the rest of the graph")
        if word == "range":
            symbol = scan.need(r"\w+", "a symbol")
            least, most = _literal(scan), _literal(scan)
            ranges.append(Range(symbol, least, most))  # type: ignore[arg-type]
        elif word == "training":
            graph = replace(graph, training=bool(_literal(scan)))
        elif word == "parameters":
            graph = replace(graph, parameters=tuple(scan.list_of(scan.string)))
        elif word == "inputs":
            graph = replace(graph, input_tree=scan.string())
        elif word == "outputs":
            graph = replace(graph, output_tree=scan.string())
        else:
            notes.append(scan.string())
    return replace(graph, ranges=tuple(ranges), notes=tuple(notes))
