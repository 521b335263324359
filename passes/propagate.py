"""What each value of a graph looks like in the example: strides, storage, whether grad flows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stagecut.ir.graph import (
    Arg,
    GradMode,
    Graph,
    Mode,
    Op,
    Recompute,
    Ref,
    Weight,
    WeightRef,
    op_refs,
)
from stagecut.ir.types import TensorType
from stagecut.passes.layout import Layout, contiguous
from stagecut.passes.probe import Call
from stagecut.passes.resolve import opaque_path

Found = Layout | int | float | bool


def owned_weights(op: Op, weights: tuple[Weight, ...]) -> tuple[tuple[str, Weight], ...]:
    """The weights inside the module that an opaque op calls, by their names in it."""
    path = opaque_path(op.target)
    if path is None:
        return ()
    inside = f"{path}." if path else ""
    return tuple(
        (name.removeprefix(inside), weight)
        for weight in weights
        for name in (weight.name, *weight.aliases)
        if name.startswith(inside)
    )


def runs(op: Op, training: bool) -> bool:
    """Whether the op runs at all in this mode."""
    return all(c.training == training for c in op.context if isinstance(c, Mode))


@dataclass(slots=True)
class Layouts:
    """The layouts found so far, walking a graph from its inputs."""

    graph: Graph
    training: bool
    values: dict[str, Found] = field(default_factory=dict)
    weights: dict[str, Layout] = field(default_factory=dict)
    roots: dict[str, str] = field(default_factory=dict)
    """For each value that lives in another's storage, the first one that does."""

    def __post_init__(self) -> None:
        for weight in self.graph.weights:
            grad = weight.trainable and self.training
            self.weights[weight.name] = contiguous(weight.type, requires_grad=grad, weight=True)
        for item in self.graph.inputs:
            if item.value is not None:
                self.values[item.value.name] = _initial(item.value.type)

    def of(self, ref: Ref | WeightRef) -> Found:
        """What a reference is."""
        return self.weights[ref.name] if isinstance(ref, WeightRef) else self.values[ref.name]

    def call(self, op: Op) -> Call:
        """The op with its references replaced by slots."""
        slots: list[Found] = []
        numbers: dict[Ref | WeightRef, int] = {}
        for ref in op_refs(op):
            if ref not in numbers:
                numbers[ref] = len(slots)
                slots.append(self.of(ref))
        state = []
        for name, weight in owned_weights(op, self.graph.weights):
            state.append((name, len(slots)))
            slots.append(self.weights[weight.name])
        args = tuple(_renumbered(a, numbers) for a in op.args)
        kwargs = tuple((k, _renumbered(a, numbers)) for k, a in op.kwargs)
        context = tuple(c for c in op.context if not isinstance(c, Mode | Recompute))
        if not self.training:
            context = (*(c for c in context if not isinstance(c, GradMode)), GradMode(False))
        return Call(
            op.target, args, kwargs, tuple(slots), context, op.sequence, self.training,
            tuple(state),
        )  # fmt: skip

    def made(self, op: Op, results: tuple[Layout | None, ...], shares: tuple[int, ...]) -> None:
        """Takes in what a probe of `op` found about its results."""
        given = op_refs(op)
        for value, result, share in zip(op.results, results, shares, strict=True):
            found = _checked(value.type, result)
            if share >= 0 and isinstance(found, Layout):
                found = self._inside(value.name, given[share], found)
            self.values[value.name] = found
        self._written(op, results)

    def _inside(self, name: str, owner: Ref | WeightRef, found: Layout) -> Layout:
        held = self.of(owner)
        if not isinstance(held, Layout):
            return found
        if isinstance(owner, Ref):
            self.roots[name] = self.roots.get(owner.name, owner.name)
        return replace(found, held=held.held, storage_bytes=held.storage_bytes)

    def _written(self, op: Op, results: tuple[Layout | None, ...]) -> None:
        """Writing a value that requires grad into another makes that one require it too."""
        if not op.effects.mutates or not any(r and r.requires_grad for r in results):
            return
        written = {self.roots.get(name, name) for name in op.effects.mutates}
        for name, found in self.values.items():
            if isinstance(found, Layout) and self.roots.get(name, name) in written:
                self.values[name] = replace(found, requires_grad=True)


def _initial(type_: object) -> Found:
    return contiguous(type_) if isinstance(type_, TensorType) else type_.hint  # type: ignore[attr-defined]


def _checked(type_: object, found: Layout | None) -> Found:
    """The probe's layout where it has the graph's shape; else the graph's own."""
    if not isinstance(type_, TensorType) or found is None:
        return _initial(type_)
    if found.shape == type_.hint_shape:
        return found
    return contiguous(type_, requires_grad=found.requires_grad)


def _renumbered(arg: Arg, numbers: dict[Ref | WeightRef, int]) -> Arg:
    if isinstance(arg, Ref | WeightRef):
        return Ref(str(numbers[arg]))
    if isinstance(arg, tuple):
        return tuple(_renumbered(item, numbers) for item in arg)
    return arg
