"""FX to the IR: one op a call, regions flattened into the op's context, names kept.

Dropped on the way: checks of metadata that export adds, and conversions that convert nothing.
A device baked into the trace becomes the stage's device.
"""

from __future__ import annotations

import json
import keyword
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import fx, nn

from stagecut.frontend import effects, symbols
from stagecut.frontend.checkpoints import region_of
from stagecut.frontend.decisions import TARGET as DECISION
from stagecut.frontend.dtypes import check_operands
from stagecut.frontend.modes import counts_batches, mode_arguments
from stagecut.frontend.opaque import TARGET as OPAQUE
from stagecut.frontend.opaque import call_of
from stagecut.frontend.sources import scope_of, source_of
from stagecut.ir.errors import TraceError
from stagecut.ir.graph import (
    Arg,
    Autocast,
    Context,
    Effects,
    GradMode,
    Mode,
    Op,
    Recompute,
    Ref,
    StageDevice,
    TorchConstant,
    Value,
    WeightRef,
    refs,
)

# Checks that hold by construction, or that Stagecut makes at the entry of a micro-batch.
_CHECKS = frozenset(
    {
        "aten._assert_tensor_metadata.default",
        "aten._assert_scalar.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)
# What libraries call only while they are traced, and the op that the same line calls otherwise.
_EAGER = MappingProxyType({"transformers.grouped_mm_fallback.default": "aten._grouped_mm.default"})
# Names that generated code uses itself.
_RESERVED = frozenset({"self", "torch", "nn", "F", "aten", "math", "operator", "device", "len"})
_WHOLE = 2**63 - 1
"""The end of a slice that has none."""
_REGIONS = frozenset({"wrap_with_set_grad_enabled", "wrap_with_autocast"})


@dataclass(slots=True)
class Lowering:
    """The state of one lowering: what each FX node became, and the ops so far."""

    model: nn.Module
    values: dict[fx.Node, Any] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    itself: dict[str, str] = field(default_factory=dict)
    """For each result of an op in place, what it wrote: the two are one tensor."""

    def fresh(self, name: str) -> str:
        """An unused identifier near `name`."""
        base = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
        if keyword.iskeyword(base) or base in _RESERVED or not base.isidentifier():
            base = f"{base}_" if base[:1].isalpha() or base[:1] == "_" else f"v_{base}"
        candidate, number = base, 1
        while candidate in self.names:
            candidate, number = f"{base}_{number}", number + 1
        self.names.add(candidate)
        return candidate

    def run(self, graph_module: fx.GraphModule, context: tuple[Context, ...]) -> Any:
        """Lowers every call of a graph and gives what it returns."""
        for node in graph_module.graph.nodes:
            if node.op == "call_function":
                self._call(node, graph_module, context)
            elif node.op == "output":
                return self.argument(node.args[0])
        return ()

    def _call(self, node: fx.Node, owner: fx.GraphModule, context: tuple[Context, ...]) -> None:
        target = target_name(node.target)
        if target in _CHECKS:
            return
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            self.values[node] = self._region(node, owner, context)
        elif node.target is operator.getitem and isinstance(self.argument(node.args[0]), tuple):
            self.values[node] = self.argument(node.args[0])[node.args[1]]
        elif _converts_nothing(node) or self._copies_itself(node, target):
            self.values[node] = self.argument(node.args[0])
        elif (size := symbols.fixed(node.meta.get("val"))) is not None:
            self.values[node] = size
        elif target == OPAQUE:
            self._opaque(node, context)
        elif target == DECISION:
            self._decision(node, context)
        else:
            self._op(node, target, context)

    def _opaque(self, node: fx.Node, context: tuple[Context, ...]) -> None:
        """A module of the user's own as one op; it may draw random numbers."""
        inputs, text, _ = node.args
        call, tensors = call_of(str(text)), self.argument(inputs)
        results = self._results(node)
        name = results[0].name if results else self.fresh(node.name)
        written, shared = (
            tuple(dict.fromkeys(ref.name for i in call[what] for ref in refs(tensors[i])))
            for what in ("written", "shared")
        )
        own = Effects(written, shared, random=True)
        args = tuple(_given(arg, tensors) for arg in call["args"])
        kwargs = tuple((key, _given(arg, tensors)) for key, arg in call["kwargs"].items())
        self.ops.append(
            Op(
                name, f"module:{call['path']}", args, kwargs, results, call["sequence"],
                call["path"], source_of(node), context, own,
            )
        )  # fmt: skip
        self.values[node] = tuple(Ref(value.name) for value in results)

    def _decision(self, node: fx.Node, context: tuple[Context, ...]) -> None:
        """A check that data decides as it did in the example."""
        tensor, value, place = node.args
        expected = _literal(json.loads(str(value)))
        args = (self.argument(tensor), expected, str(place))
        name, source = self.fresh(node.name), source_of(node)
        self.ops.append(
            Op(name, DECISION, args, scope=scope_of(node), source=source, context=context)
        )

    def _region(self, node: fx.Node, owner: fx.GraphModule, context: tuple[Context, ...]) -> Any:
        name = str(node.target)
        if name not in _REGIONS:
            raise TraceError(
                f"{source_of(node) or 'the model'}: {name} has a body that runs under a condition "
                "or a loop on data, which cannot be cut; compute it with tensor ops "
                "(torch.where, masking)"
            )
        if name == "wrap_with_autocast":
            _, dtype, enabled, _, body, *inputs = node.args
            region: Context = Autocast(_autocast_dtype(dtype), bool(enabled))
        else:
            enabled, body, *inputs = node.args
            region = GradMode(bool(enabled))
        inner = getattr(owner, str(body.target))  # type: ignore[union-attr]
        placeholders = [n for n in inner.graph.nodes if n.op == "placeholder"]
        for placeholder, given in zip(placeholders, inputs, strict=True):
            self.values[placeholder] = self.argument(given)
        return self.run(inner, (*context, region))

    def _op(self, node: fx.Node, target: str, context: tuple[Context, ...]) -> None:
        check_operands(node, context)
        scope = scope_of(node)
        if counts_batches(node, scope, self.model):
            context = (Mode(True), *context)
        region = region_of(node)
        if region is not None:
            context = (Recompute(region), *context)
        by_mode = mode_arguments(node, scope, self.model)
        args = tuple(
            by_mode.get(name) or self.argument(arg)
            for name, arg in zip(_argument_names(node), node.args, strict=False)
        )
        kwargs = tuple((k, by_mode.get(k) or self.argument(v)) for k, v in node.kwargs.items())
        results = self._results(node)
        name = results[0].name if results else self.fresh(node.name)
        sequence = isinstance(node.meta.get("val"), tuple | list)
        self.ops.append(
            Op(
                name, target, args, kwargs, results, sequence, scope, source_of(node), context,
                self._effects(node),
            )
        )  # fmt: skip
        if effects.returns_what_it_writes(node) and len(results) == 1:
            (written,) = self.ops[-1].effects.mutates
            self.itself[name] = self.itself.get(written, written)
        made = tuple(Ref(value.name) for value in results)
        self.values[node] = made if sequence else (made[0] if made else None)

    def _copies_itself(self, node: fx.Node, target: str) -> bool:
        """`self.steps += 1` is traced as an addition in place and a copy of its result onto it."""
        if target != "aten.copy_.default":
            return False
        into, source = (self.argument(arg) for arg in node.args[:2])
        return isinstance(source, Ref) and self.itself.get(source.name) == into.name

    def _results(self, node: fx.Node) -> tuple[Value, ...]:
        made = node.meta.get("val")
        if made is None:
            return ()
        if not isinstance(made, tuple | list):
            return (Value(self.fresh(node.name), symbols.type_of(made)),)
        return tuple(
            Value(self.fresh(f"{node.name}_{index}"), symbols.type_of(item))
            for index, item in enumerate(made)
        )

    def _effects(self, node: fx.Node) -> Effects:
        return Effects(
            self._names(effects.mutated(node)),
            self._names(effects.aliased(node)),
            effects.draws(node),
        )

    def _names(self, nodes: Sequence[fx.Node]) -> tuple[str, ...]:
        found = [ref.name for n in nodes for ref in refs(self.values[n])]
        return tuple(dict.fromkeys(found))

    def argument(self, arg: Any) -> Any:
        """An FX argument as an IR argument."""
        if isinstance(arg, fx.Node):
            return self.values[arg]
        if isinstance(arg, tuple | list):
            return tuple(self.argument(item) for item in arg)
        if isinstance(arg, torch.device):
            return StageDevice()
        if isinstance(arg, torch.dtype | torch.layout | torch.memory_format):
            return TorchConstant(str(arg).removeprefix("torch."))
        if arg is None or isinstance(arg, bool | int | float | complex | str):
            return arg
        raise TraceError(
            f"an argument of type {type(arg).__name__} cannot be written into a stage: {arg!r}"
        )


def _literal(value: Any) -> Arg:
    return tuple(map(_literal, value)) if isinstance(value, list) else value


def _given(item: Any, tensors: tuple[Arg, ...]) -> Arg:
    """An argument of an opaque module, tensors by number."""
    if isinstance(item, dict):
        return tensors[item["tensor"]]
    return tuple(_given(i, tensors) for i in item) if isinstance(item, list) else item


def target_name(target: Any) -> str:
    """A call's target, qualified: `aten.linear.default`, `operator.mul`."""
    if isinstance(target, torch._ops.OpOverload):
        return _EAGER.get(str(target), str(target))
    module = str(getattr(target, "__module__", "")).removeprefix("_")
    return f"{module}.{getattr(target, '__name__', target)}"


def _argument_names(node: fx.Node) -> list[str]:
    schema = getattr(node.target, "_schema", None)
    declared = [] if schema is None else [argument.name for argument in schema.arguments]
    return declared + [""] * (len(node.args) - len(declared))


def _autocast_dtype(dtype: Any) -> str:
    return "bfloat16" if dtype is None else symbols.dtype_name(dtype)


def _converts_nothing(node: fx.Node) -> bool:
    """Whether a call gives its first argument back as it was, whatever its sizes."""
    target = target_name(node.target)
    if not node.args or not isinstance(node.args[0], fx.Node):
        return False
    if target == "aten.slice.Tensor":
        start, end, step = (effects.argument(node, name) for name in ("start", "end", "step"))
        return (start, end, step) in ((None, None, 1), (0, _WHOLE, 1))
    if not target.startswith("aten.to."):
        return False
    before, after = node.args[0].meta.get("val"), node.meta.get("val")
    copies = effects.argument(node, "copy", False)
    strided = effects.argument(node, "memory_format") in (None, torch.preserve_format)
    same = before is not None and after is not None and before.dtype == after.dtype
    return bool(same and not copies and strided)


def weight_arguments(
    signature: Any, nodes: Mapping[str, fx.Node], canonical: Callable[[str], str]
) -> dict[fx.Node, Arg]:
    """The placeholders that are weights, as references to the weight table."""
    kinds = torch.export.graph_signature.InputKind
    weights = (kinds.PARAMETER, kinds.BUFFER, kinds.CONSTANT_TENSOR)
    return {
        nodes[spec.arg.name]: WeightRef(canonical(spec.target))
        for spec in signature.input_specs
        if spec.kind in weights
    }
