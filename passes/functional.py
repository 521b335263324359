"""Rewrites in-place ops out of place where their base is ours alone.

    %a = aten.conv2d(…)                        %a = aten.conv2d(…)
    %b = aten.add_.Tensor(%a, %x)       ->     %b = aten.add.Tensor(%a, %x)
    %c = aten.mul.Tensor(%a, 2)                %c = aten.mul.Tensor(%b, 2)

`x += f(x)` in every layer leaves one base for the whole network, which no cut may part. What is
not rewritten: a base that is an input, a weight or may be a view of one; a base of which another
view is read later (it would miss the change); an op that one mode alone runs;
an op without a functional form that has the same result type and a derivative.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from stagecut.ir.errors import UnsupportedError
from stagecut.ir.graph import (
    Arg,
    Effects,
    Graph,
    Mode,
    Op,
    Ref,
    Value,
    WeightRef,
    op_refs,
    refs,
)
from stagecut.ir.types import TensorType, is_differentiable
from stagecut.passes.fake import fake_leaf, fake_tensors
from stagecut.passes.layout import contiguous
from stagecut.passes.resolve import function_of, torch_value


def out_of_place(graph: Graph) -> Graph:
    """The graph with every in-place op rewritten that safely can be; uses are renamed."""
    with fake_tensors():
        return _Rewrite(graph).run()


@dataclass(slots=True)
class _Rewrite:
    graph: Graph
    newest: dict[str, str] = field(default_factory=dict)
    """For each value that was written, the name its content has now."""
    parents: dict[str, str] = field(default_factory=dict)
    """Union-find over names that may share storage."""
    last_read: dict[str, int] = field(default_factory=dict)
    types: dict[str, Value] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)
    """Names of the inputs and weights."""

    def run(self) -> Graph:
        self._prepare()
        ops = []
        for index, op in enumerate(self.graph.ops):
            renamed = self._renamed(op)
            rewritten = self._functional(renamed, index) or renamed
            for name in rewritten.effects.aliases:
                for value in rewritten.results:
                    self.parents[self._find(value.name)] = self._find(name)
            ops.append(rewritten)
        outputs = tuple(_map(output, self.newest) for output in self.graph.outputs)
        return replace(self.graph, ops=tuple(ops), outputs=outputs)

    def _prepare(self) -> None:
        for index, op in enumerate(self.graph.ops):
            self.last_read.update({ref.name: index for ref in op_refs(op)})
            self.types.update({value.name: value for value in op.results})
        for output in self.graph.outputs:
            self.last_read.update({ref.name: len(self.graph.ops) for ref in refs(output)})
        for item in self.graph.inputs:
            if item.value is not None:
                self.types[item.value.name] = item.value
                self.foreign.add(item.value.name)
        self.foreign.update(weight.name for weight in self.graph.weights)

    def _find(self, name: str) -> str:
        while self.parents.get(name, name) != name:
            name = self.parents[name]
        return name

    def _renamed(self, op: Op) -> Op:
        named = (*(ref.name for ref in op.refs), *op.effects.mutates, *op.effects.aliases)
        if not any(name in self.newest for name in named):
            return op
        args = tuple(_map(arg, self.newest) for arg in op.args)
        kwargs = tuple((key, _map(arg, self.newest)) for key, arg in op.kwargs)
        effects = replace(
            op.effects,
            mutates=tuple(self.newest.get(name, name) for name in op.effects.mutates),
            aliases=tuple(self.newest.get(name, name) for name in op.effects.aliases),
        )
        return replace(op, args=args, kwargs=kwargs, effects=effects)

    def _functional(self, op: Op, index: int) -> Op | None:
        """The op out of place, or None where it has to stay as it is."""
        if any(isinstance(context, Mode) for context in op.context):
            return None  # what it writes has to be there in the other mode too
        target, base = _functional_target(op.target), _base(op)
        if target is None or base is None or not self._ours_alone(base, index):
            return None
        if not self._same_result(op, target):
            return None
        (result,) = op.results
        self.newest = {k: result.name if v == base else v for k, v in self.newest.items()}
        self.newest[base] = result.name
        self.last_read[result.name] = max(
            self.last_read.get(name, -1) for name in (base, result.name)
        )
        effects = Effects((), _aliases(target, base), op.effects.random)
        return replace(op, target=target, effects=effects)

    def _ours_alone(self, base: str, index: int) -> bool:
        """Whether nothing else that may share the base's storage is foreign or read later."""
        root = self._find(base)
        others = [name for name in self._names() if name != base and self._find(name) == root]
        if base in self.foreign or any(name in self.foreign for name in others):
            return False
        return all(self.last_read.get(name, -1) <= index for name in others)

    def _names(self) -> set[str]:
        return set(self.parents) | set(self.parents.values())

    def _same_result(self, op: Op, target: str) -> bool:
        """Whether the functional form makes a tensor of the same type, and has a derivative."""

        def lookup(ref: Ref | WeightRef) -> Any:
            type_ = self._type(ref)
            if not isinstance(type_, TensorType):
                return type_.hint
            layout = contiguous(type_)
            dtype = getattr(torch, layout.dtype)
            grad = is_differentiable(layout.dtype)
            return fake_leaf(layout.shape, layout.stride, dtype, grad)

        def value(arg: Arg) -> Any:
            return torch_value(arg, lookup, training=True, device=torch.device("cpu"))

        args, kwargs = [value(a) for a in op.args], {k: value(a) for k, a in op.kwargs}
        made = function_of(target, {})(*args, **kwargs)
        expected = op.results[0].type
        return (
            isinstance(made, torch.Tensor)
            and isinstance(expected, TensorType)
            and tuple(made.shape) == expected.hint_shape
            and str(made.dtype) == f"torch.{expected.dtype}"
            and _has_derivative(made)
        )

    def _type(self, ref: Ref | WeightRef) -> Any:
        if isinstance(ref, Ref):
            return self.types[ref.name].type
        return next(w.type for w in self.graph.weights if w.name == ref.name)


def _has_derivative(made: torch.Tensor) -> bool:
    return made.grad_fn is None or type(made.grad_fn).__name__ != "NotImplemented"


def _functional_target(target: str) -> str | None:
    """`aten.add.Tensor` for `aten.add_.Tensor`, where torch has it."""
    library, _, rest = target.partition(".")
    name, _, overload = rest.partition(".")
    if library != "aten" or not name.endswith("_") or name.endswith("__"):
        return None
    candidate = f"aten.{name[:-1]}.{overload}"
    try:
        function_of(candidate, {})
    except UnsupportedError:
        return None
    return candidate


def _base(op: Op) -> str | None:
    """The value an in-place op writes, if it is its first argument and its only effect."""
    first = op.args[0] if op.args else None
    if not isinstance(first, Ref) or op.effects.mutates != (first.name,) or len(op.results) != 1:
        return None
    return first.name


def _aliases(target: str, base: str) -> tuple[str, ...]:
    """The base where the functional form may return it, or a view of it, itself."""
    schema = function_of(target, {})._schema  # type: ignore[attr-defined]
    shares = any(returned.alias_info for returned in schema.returns)
    return (base,) if shares or schema.name.endswith("dropout") else ()


def _map(arg: Arg, names: dict[str, str]) -> Arg:
    if isinstance(arg, Ref):
        return Ref(names.get(arg.name, arg.name))
    if isinstance(arg, tuple):
        return tuple(_map(item, names) for item in arg)
    return arg
