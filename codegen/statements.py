"""The body of a stage's forward: one statement an op, regions as `with` blocks."""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stagecut.codegen.recompute import Run, runs
from stagecut.codegen.regions import Line, blocks
from stagecut.codegen.spelling import call
from stagecut.codegen.wiring import StageWiring
from stagecut.ir.graph import (
    Arg,
    Autocast,
    ByMode,
    Context,
    Mode,
    Op,
    Recompute,
    Ref,
    StageDevice,
    TorchConstant,
    WeightRef,
    reads,
)
from stagecut.ir.types import TensorType

DECISION = "stagecut.expect.default"
"""The target of a check that data decides as it did in the example."""


def body(stage: StageWiring, draws: Mapping[str, int]) -> list[str]:
    """The statements of a stage's forward, indented for a method.

    Args:
        stage: What the stage runs.
        draws: For each random op of the whole graph its number, which seeds its draws.
    """
    lines = [
        *_preamble(stage),
        *(Line(f"{name} = {tensor}.size({dim})") for name, tensor, dim in stage.sizes),
        *_statements(stage, draws),
    ]
    lines.append(Line(f"return {_tuple([port.name for port in stage.results])}"))
    return list(blocks(lines, 2))


def _names_device(arg: Arg) -> bool:
    if isinstance(arg, tuple):
        return any(map(_names_device, arg))
    return isinstance(arg, StageDevice)


def _preamble(stage: StageWiring) -> Iterator[Line]:
    names_device = any(
        any(isinstance(c, Autocast) for c in op.context)
        or any(_names_device(a) for a in (*op.args, *(v for _, v in op.kwargs)))
        or op.effects.random
        for op in stage.ops
    )
    if not names_device:
        return
    tensors = [port.name for port in stage.inputs if isinstance(port.type, TensorType)]
    owner = tensors[0] if tensors else weight_path(stage.weights[0]) if stage.weights else None
    yield Line(f"device = {owner}.device" if owner else "device = torch.get_default_device()")


def _statements(stage: StageWiring, draws: Mapping[str, int]) -> Iterator[Line]:
    writer = _Writer(stage, draws, _last_uses(stage), _modes(stage))
    returned = frozenset(port.name for port in stage.results)
    for number, run in enumerate(runs(stage.ops, returned)):
        if run.group is None:
            yield from writer.lines(range(run.start, run.stop))
        else:
            yield from writer.recomputed(run, f"recompute_{number}")


@dataclass(frozen=True, slots=True)
class _Writer:
    stage: StageWiring
    draws: Mapping[str, int]
    dead: list[list[str]]
    modes: Mapping[str, Context]

    def lines(self, positions: range, kept: frozenset[str] = frozenset()) -> Iterator[Line]:
        """The statements of some ops; `kept` are not to be deleted among them."""
        origin = ("", "")
        for position in positions:
            op = self.stage.ops[position]
            context = tuple(c for c in op.context if not isinstance(c, Recompute))
            if (op.scope, op.source) != origin and (op.scope or op.source):
                origin = (op.scope, op.source)
                yield Line(f"# {'  '.join(filter(None, origin))}", context)
            if op.name in self.draws:
                yield Line(f"self.reseed({self.draws[op.name]}, device)", context)
            yield Line(statement(op), context)
            names = [name for name in self.dead[position] if name not in kept]
            yield from _deletions(names, context, self.modes)

    def recomputed(self, run: Run, function: str) -> Iterator[Line]:
        """A region as a function, and its call under torch's checkpoint."""
        positions = range(run.start, run.stop)
        draws = any(self.stage.ops[p].name in self.draws for p in positions)
        # Run again, it must draw what its own micro-batch drew, and others have begun meanwhile.
        own_seed = ["seed=self.seed"] if draws else []
        yield Line(f"def {function}({', '.join([*run.inputs, *own_seed])}):")
        absent = [name for name in run.results if name in self.modes]
        inner = [
            *([Line("self.seed = seed")] if draws else []),
            *(Line(f"{name} = None") for name in absent),
            *self.lines(positions, frozenset(run.inputs)),
            Line(f"return {_tuple(run.results)}"),
        ]
        yield from (Line(text) for text in blocks(inner, 1))
        given = ", ".join([function, *run.inputs, "use_reentrant=False"])
        made = f"{', '.join(run.results)}{',' * (len(run.results) == 1)} = " * bool(run.results)
        yield Line(f"{made}checkpoint({given})")
        ends = [name for p in positions for name in self.dead[p] if name in run.inputs]
        yield from _deletions(ends, (), self.modes)


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def _modes(stage: StageWiring) -> dict[str, Context]:
    """The mode of every value that exists in one mode only."""
    return {
        value.name: context
        for op in stage.ops
        for context in op.context
        if isinstance(context, Mode)
        for value in op.results
    }


def _deletions(
    names: Sequence[str], context: tuple[Context, ...], modes: Mapping[str, Context]
) -> Iterator[Line]:
    groups: dict[Context | None, list[str]] = {}
    for name in names:
        mode = modes.get(name)
        groups.setdefault(None if mode in context else mode, []).append(name)
    for mode, group in groups.items():
        where = context if mode is None else (*context, mode)
        yield Line(f"del {', '.join(group)}", where)


def statement(op: Op) -> str:
    """One op as an assignment."""
    if op.target == "stagecut.refuse":
        return f"raise NotImplementedError({expression(op.args[0])})"
    args = [expression(arg) for arg in op.args]
    if op.target == DECISION:
        return f"expect({', '.join(map(expression, op.args))})"
    if op.target == "operator.getitem" and op.args[1] == ByMode(0, 1):
        # Not an index: of the two values only one exists in each mode.
        train, evaluation = map(expression, op.args[0])  # type: ignore[arg-type]
        return f"{op.name} = {train} if self.training else {evaluation}"
    target = op.target
    if target.startswith("module:"):
        target = weight_path(target.removeprefix("module:"))
    written = call(target, args, [(name, expression(arg)) for name, arg in op.kwargs])
    if not op.results:
        return written
    names = ", ".join(value.name for value in op.results)
    return f"{names}{',' if op.sequence and len(op.results) == 1 else ''} = {written}"


def expression(arg: Arg) -> str:
    """One argument as Python."""
    match arg:
        case Ref(name):
            return name
        case WeightRef(name):
            return weight_path(name)
        case TorchConstant(name):
            return f"torch.{name}"
        case StageDevice():
            return "device"
        case ByMode(True, False):
            return "self.training"
        case ByMode(train, evaluation):
            return f"{train!r} if self.training else {evaluation!r}"
        case tuple():
            return f"[{', '.join(map(expression, arg))}]"
        case float() if not math.isfinite(arg):
            return f'float("{arg}")'
        case _:
            return repr(arg)


def weight_path(name: str) -> str:
    """A weight as the stage holds it: `self.transformer.h["3"].ln_1.weight`."""
    return "self" + "".join(map(_step, name.split(".")))


def _step(part: str) -> str:
    plain = part.isidentifier() and not keyword.iskeyword(part)
    return f".{part}" if plain else f'["{part}"]'


def _last_uses(stage: StageWiring) -> list[list[str]]:
    """For each op, the tensors that nothing after it in the stage uses."""
    kept = {port.name for port in stage.results}
    tensors = {p.name for p in stage.inputs if isinstance(p.type, TensorType)}
    tensors |= {v.name for op in stage.ops for v in op.results if isinstance(v.type, TensorType)}
    last: dict[str, int] = {}
    for position, op in enumerate(stage.ops):
        for name in (*reads(op), *(v.name for v in op.results)):
            last[name] = position
    dead: list[list[str]] = [[] for _ in stage.ops]
    for name, position in last.items():
        if name in tensors and name not in kept and position < len(stage.ops) - 1:
            dead[position].append(name)
    return dead
