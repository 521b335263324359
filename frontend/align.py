"""Two traces of one model, in train and in eval mode, as one graph that runs in both.

    train                     eval                    together
    %n = aten.rand_like(%x)                           %n = aten.rand_like(%x)   [train]
    %y = aten.add(%x, %n)                             %y = aten.add(%x, %n)     [train]
    %z = aten.relu(%y)        %z = aten.relu(%x)      %c = %y in train, %x in eval
    %m = aten.mul(%z, 0.5)    %m = aten.mul(%z, 1.0)  %z = aten.relu(%c)
                                                      %m = aten.mul(%z, mode(0.5, 1.0))

Ops are matched by target, module and source line, in order (longest matching blocks). A choice
between two values is written `operator.getitem((%y, %x), mode(0, 1))`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

from stagecut.ir.graph import (
    Arg,
    ByMode,
    Context,
    Effects,
    Graph,
    Mode,
    Op,
    Recompute,
    Ref,
    Value,
    WeightRef,
)
from stagecut.ir.types import Type

CHOICE = "operator.getitem"
REFUSAL = "stagecut.refuse"
"""The target of an op that raises with the reason it is given."""
_BY_MODE = ByMode(0, 1)


class NoMatch(Exception):
    """Why two traces cannot be one graph."""


def align(train: Graph, evaluated: Graph) -> Graph:
    """One graph of two traces of the same model with the same example.

    Raises:
        NoMatch: they differ in what cannot be a choice; says in what.
    """
    _same("inputs", [i.value and i.value.type for i in train.inputs],
          [i.value and i.value.type for i in evaluated.inputs])  # fmt: skip
    _same("weights and constants", train.weights, evaluated.weights)
    _same("output container", train.output_tree, evaluated.output_tree)
    merge = _Merge(train, evaluated)
    ops = tuple(merge.ops())
    outputs = tuple(merge.choice_of(a, b) for a, b in merge.pairs_of_outputs())
    return replace(train, ops=(*ops, *merge.take_choices()), outputs=outputs)


def refuse_eval(graph: Graph, reason: str) -> Graph:
    """The graph with an op at its start that raises in eval mode, and a note that says so."""
    first = Op("no_eval", REFUSAL, (reason,), context=(Mode(False),))
    note = f"only training: {reason}"
    return replace(graph, ops=(first, *graph.ops), notes=(*graph.notes, note))


def _same(what: str, a: object, b: object) -> None:
    if a != b:
        raise NoMatch(f"the {what} differ between train and eval mode")


@dataclass(slots=True)
class _Merge:
    train: Graph
    evaluated: Graph
    names: dict[str, str] = field(default_factory=dict)
    """For each value of the eval trace its name in the merged graph."""
    taken: set[str] = field(default_factory=set)
    types: dict[str, Type] = field(default_factory=dict)
    choices: dict[tuple[str, str], Ref] = field(default_factory=dict)
    pending: list[Op] = field(default_factory=list)
    """Choices made and not placed yet."""

    def __post_init__(self) -> None:
        for graph in (self.train, self.evaluated):
            values = [i.value for i in graph.inputs if i.value is not None]
            values += [value for op in graph.ops for value in op.results]
            if graph is self.train:
                self.taken = {value.name for value in values} | {op.name for op in graph.ops}
                self.types = {value.name: value.type for value in values}
        for ours, theirs in zip(self.train.inputs, self.evaluated.inputs, strict=True):
            if ours.value is not None and theirs.value is not None:
                self.names[theirs.value.name] = ours.value.name

    def ops(self) -> Iterator[Op]:
        a, b = self.train.ops, self.evaluated.ops
        matcher = SequenceMatcher(None, [_key(op) for op in a], [_key(op) for op in b], False)
        for tag, i, j, p, q in matcher.get_opcodes():
            if tag == "equal":
                for ours, theirs in zip(a[i:j], b[p:q], strict=True):
                    made = self._both(ours, theirs)
                    yield from (*self.take_choices(), made)
            else:
                yield from (replace(op, context=_within(Mode(True), op)) for op in a[i:j])
                yield from map(self._eval_only, b[p:q])

    def take_choices(self) -> list[Op]:
        """The choices that the op to be placed next needs."""
        taken, self.pending = self.pending, []
        return taken

    def pairs_of_outputs(self) -> Iterator[tuple[Arg, Arg]]:
        if len(self.train.outputs) != len(self.evaluated.outputs):
            raise NoMatch("the outputs differ in number between train and eval mode")
        yield from zip(self.train.outputs, self.evaluated.outputs, strict=True)

    def _both(self, ours: Op, theirs: Op) -> Op:
        for a, b in zip(ours.results, theirs.results, strict=True):
            self.names[b.name] = a.name
        args = tuple(self._arg(a, b) for a, b in zip(ours.args, theirs.args, strict=True))
        kwargs = tuple(
            (name, self._arg(a, b))
            for (name, a), (_, b) in zip(ours.kwargs, theirs.kwargs, strict=True)
        )
        effects = ours.effects
        if (args, kwargs) != (ours.args, ours.kwargs):
            effects = self._renamed(ours, args, kwargs)
        return replace(ours, args=args, kwargs=kwargs, effects=effects)

    def _renamed(
        self, op: Op, args: tuple[Arg, ...], kwargs: tuple[tuple[str, Arg], ...]
    ) -> Effects:
        """The op's effects, on the choices that took the place of what it read."""
        new = {
            a.name: b.name
            for a, b in zip(
                (*op.args, *(v for _, v in op.kwargs)), (*args, *(v for _, v in kwargs)),
                strict=True,
            )
            if isinstance(a, Ref) and isinstance(b, Ref)
        }  # fmt: skip
        if any(new.get(name, name) != name for name in op.effects.mutates):
            raise NoMatch(f"{op.name} ({op.source}) writes another tensor in eval than in train")
        return replace(op.effects, aliases=tuple(new.get(n, n) for n in op.effects.aliases))

    def _arg(self, ours: Arg, theirs: Arg) -> Arg:
        if isinstance(ours, tuple) and isinstance(theirs, tuple) and len(ours) == len(theirs):
            return tuple(self._arg(a, b) for a, b in zip(ours, theirs, strict=True))
        return self.choice_of(ours, theirs)

    def choice_of(self, ours: Arg, theirs: Arg) -> Arg:
        """One argument that is `ours` in train and `theirs` (of the eval trace) in eval."""
        if isinstance(theirs, Ref):
            theirs = Ref(self.names[theirs.name])
        if ours == theirs and type(ours) is type(theirs):
            return ours
        if isinstance(ours, Ref) and isinstance(theirs, Ref):
            return self._choice(ours, theirs)
        if isinstance(ours, ByMode):
            ours = ours.train
        if ours == theirs and type(ours) is type(theirs):
            return ours
        if isinstance(ours, int | float) and isinstance(theirs, int | float):
            return ByMode(ours, theirs)
        raise NoMatch(f"an argument is {_shown(ours)} in train and {_shown(theirs)} in eval")

    def _choice(self, ours: Ref, theirs: Ref) -> Ref:
        key = ours.name, theirs.name
        if key not in self.choices:
            made, other = self.types[ours.name], self.types[theirs.name]
            if made != other:
                raise NoMatch(f"%{ours.name} is {made} in train, and {other} in eval")
            value = Value(self._fresh(f"{ours.name}_by_mode"), made)
            self.types[value.name] = made
            self.choices[key] = Ref(value.name)
            self.pending.append(
                Op(value.name, CHOICE, ((ours, theirs), _BY_MODE), (), (value,), effects=Effects(
                    aliases=key))
            )  # fmt: skip
        return self.choices[key]

    def _eval_only(self, op: Op) -> Op:
        results = tuple(replace(v, name=self._fresh(v.name)) for v in op.results)
        for old, new in zip(op.results, results, strict=True):
            self.names[old.name] = new.name
            self.types[new.name] = new.type
        effects = replace(
            op.effects,
            mutates=tuple(self.names.get(n, n) for n in op.effects.mutates),
            aliases=tuple(self.names.get(n, n) for n in op.effects.aliases),
        )
        return replace(
            op,
            name=results[0].name if results else self._fresh(op.name),
            args=tuple(map(self._mapped, op.args)),
            kwargs=tuple((name, self._mapped(a)) for name, a in op.kwargs),
            results=results,
            context=_within(Mode(False), op),
            effects=effects,
        )

    def _mapped(self, arg: Arg) -> Arg:
        if isinstance(arg, Ref):
            return Ref(self.names[arg.name])
        return tuple(map(self._mapped, arg)) if isinstance(arg, tuple) else arg

    def _fresh(self, name: str) -> str:
        candidate, number = name, 1
        while candidate in self.taken:
            candidate, number = f"{name}_{number}", number + 1
        self.taken.add(candidate)
        return candidate


def _within(mode: Mode, op: Op) -> tuple[Context, ...]:
    return op.context if mode in op.context else (mode, *op.context)


def _key(op: Op) -> tuple[object, ...]:
    """Equal for ops that may be the same call in both modes."""
    shape = tuple(map(_form, op.args)), tuple((name, _form(a)) for name, a in op.kwargs)
    types = tuple(value.type for value in op.results)
    context = tuple(c for c in op.context if not isinstance(c, Recompute))
    return op.target, op.scope, op.source, context, shape, types


def _form(arg: Arg) -> object:
    """What of an argument must be alike: all but which value it is, and numbers."""
    if isinstance(arg, tuple):
        return tuple(map(_form, arg))
    if isinstance(arg, Ref):
        return Ref
    if isinstance(arg, ByMode | bool | int | float):
        return float
    return arg


def _shown(arg: Arg) -> str:
    names: Sequence[str] = [arg.name] if isinstance(arg, Ref | WeightRef) else []
    return f"%{names[0]}" if names else repr(arg)
