"""Graph to text.

    graph @MLP(%x: f32[s0=2, 8] {path="x", split=0}) {
      weight @layers.0.weight: f32[8, 8] parameter trainable
      %linear: f32[s0=2, 8] grad = aten.linear.default(%x, @layers.0.weight) {scope="layers.0"}
      return (%linear)
    }

Whatever stands behind `#` is for the reader alone; the parser passes over it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from stagecut.ir.cost import Cost, Saved, Work
from stagecut.ir.graph import (
    Arg,
    Autocast,
    ByMode,
    Context,
    GradMode,
    Graph,
    Input,
    Mode,
    Op,
    Recompute,
    Ref,
    StageDevice,
    TorchConstant,
    Value,
    Weight,
    WeightRef,
)


def print_graph(graph: Graph) -> str:
    """The text of a graph; `parse_graph` gives the same graph back."""
    inputs = ", ".join(map(_input, graph.inputs))
    body = [*map(_weight, graph.weights), *map(print_op, graph.ops)]
    body.append(f"return ({', '.join(map(print_arg, graph.outputs))})")
    body.extend(_trailer(graph))
    lines = "\n".join(f"  {line}" for line in body)
    return f"graph @{graph.name}({inputs}) {{\n{lines}\n}}\n"


def print_op(op: Op) -> str:
    """One op as a line, with a summary of its cost behind `#`."""
    arguments = [*map(print_arg, op.args), *(f"{k}={print_arg(v)}" for k, v in op.kwargs)]
    call = f"{op.target}({', '.join(arguments)})"
    results = ", ".join(map(_value, op.results))
    if op.sequence:
        results = f"({results})"
    head = f"{results} = {call}" if op.results or op.sequence else call
    return head + _attributes(list(_op_attributes(op))) + _summary(op.cost)


def print_arg(arg: Arg) -> str:
    """One argument."""
    match arg:
        case Ref(name):
            return f"%{name}"
        case WeightRef(name):
            return f"@{_dotted(name)}"
        case TorchConstant(name):
            return f"torch.{name}"
        case StageDevice():
            return "stage_device"
        case ByMode(train, evaluation):
            return f"mode({print_arg(train)}, {print_arg(evaluation)})"
        case tuple():
            return f"[{', '.join(map(print_arg, arg))}]"
        case str():
            return json.dumps(arg)
        case None:
            return "none"
        case bool():
            return "true" if arg else "false"
        case _:
            return repr(arg)


def _dotted(name: str) -> str:
    plain = all(part.replace("_", "a").isalnum() for part in name.split("."))
    return name if plain else json.dumps(name)


def _value(value: Value) -> str:
    return f"%{value.name}: {value.type}{' grad' if value.requires_grad else ''}"


def _input(item: Input) -> str:
    if item.value is None:
        return f"{print_arg(item.constant)}{_attributes([f'path={json.dumps(item.path)}'])}"
    attributes = [f"path={json.dumps(item.path)}"]
    if item.split_dim is not None:
        attributes.append(f"split={item.split_dim}")
    return _value(item.value) + _attributes(attributes)


def _weight(weight: Weight) -> str:
    words = [f"weight @{_dotted(weight.name)}: {weight.type}", weight.kind]
    words.extend(["trainable"] if weight.trainable else [])
    words.extend([] if weight.persistent else ["unsaved"])
    aliases = [f"aliases=[{', '.join(map(json.dumps, weight.aliases))}]"] if weight.aliases else []
    return " ".join(words) + _attributes(aliases)


def _op_attributes(op: Op) -> Iterator[str]:
    if not op.results or op.results[0].name != op.name:
        yield f"name={json.dumps(op.name)}"
    if op.scope:
        yield f"scope={json.dumps(op.scope)}"
    if op.source:
        yield f"source={json.dumps(op.source)}"
    if op.context:
        yield f"context=[{', '.join(map(_context, op.context))}]"
    effects = op.effects
    for key, names in (("mutates", effects.mutates), ("aliases", effects.aliases)):
        if names:
            yield f"{key}=[{', '.join(map(json.dumps, names))}]"
    if effects.random:
        yield "random=true"
    if op.cost is not None:
        yield f"cost={_cost(op.cost)}"


def _context(context: Context) -> str:
    match context:
        case GradMode(enabled):
            return f"grad({print_arg(enabled)})"
        case Autocast(dtype, enabled):
            return f"autocast({json.dumps(dtype)}, {print_arg(enabled)})"
        case Recompute(group):
            return f"recompute({group})"
        case Mode(training):
            return f"training({print_arg(training)})"


def _cost(cost: Cost) -> str:
    works = ", ".join(map(_work, (cost.forward, cost.backward_input, cost.backward_weight)))
    saved = ", ".join(map(_saved, cost.saved))
    shares = ", ".join(map(str, cost.shares))
    origin = json.dumps(cost.origin)
    return f"[{works}, [{saved}], [{shares}], {cost.workspace_bytes}, {origin}]"


def _work(work: Work) -> str:
    figures = (work.flops, work.elementwise_flops, work.bytes, work.kernels, work.seconds)
    return f"[{', '.join(map(repr, figures))}]"


def _saved(saved: Saved) -> str:
    return f"[{json.dumps(saved.kind)}, {saved.index}, {saved.n_bytes}]"


def _summary(cost: Cost | None) -> str:
    if cost is None:
        return ""
    kept = sum(saved.n_bytes for saved in cost.saved)
    parts = []
    if cost.forward.flops:
        parts.append(f"{cost.forward.flops / 1e9:.3g} GFLOP")
    if kept:
        parts.append(f"saves {kept / 2**20:.3g} MiB")
    return f"  # {', '.join(parts)}" if parts else ""


def _trailer(graph: Graph) -> Iterator[str]:
    for r in graph.ranges:
        yield f"range {r.symbol} {r.least} {'none' if r.most is None else r.most}"
    yield f"training {print_arg(graph.training)}"
    if graph.parameters:
        yield f"parameters [{', '.join(map(json.dumps, graph.parameters))}]"
    if graph.input_tree:
        yield f"inputs {json.dumps(graph.input_tree)}"
    if graph.output_tree:
        yield f"outputs {json.dumps(graph.output_tree)}"
    for note in graph.notes:
        yield f"note {json.dumps(note)}"


def _attributes(attributes: list[str]) -> str:
    return f" {{{', '.join(attributes)}}}" if attributes else ""
