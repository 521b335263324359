"""`nn.Module` to `Graph`: the frontend's one door."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from stagecut.frontend import symbols
from stagecut.frontend.align import NoMatch, align, refuse_eval
from stagecut.frontend.around import FRONTENDS, Around, Means, export_around
from stagecut.frontend.asks import asking_lines, recording_lines, seeding_lines
from stagecut.frontend.checking import check_repeats
from stagecut.frontend.checkpoints import recognised
from stagecut.frontend.culprits import outside
from stagecut.frontend.example import QUIET, Example, prepare
from stagecut.frontend.exporting import Exported
from stagecut.frontend.lower import Lowering, weight_arguments
from stagecut.frontend.mode_reads import mode_reads
from stagecut.frontend.retype import rehint, renamed
from stagecut.frontend.sources import short_path
from stagecut.frontend.splitting import whole_inputs
from stagecut.frontend.trees import dump_tree, flatten, leaf_paths
from stagecut.frontend.weights import WeightTable, weight_table
from stagecut.ir.errors import ArgumentError, TraceError
from stagecut.ir.graph import Graph, Input, Range, Ref, Value
from stagecut.ir.verify import verify


@dataclass(frozen=True, slots=True)
class Traced:
    """A traced model: its graph, and the tensors that its code makes out of nothing."""

    graph: Graph
    constants: Mapping[str, torch.Tensor]
    """Weights of kind `constant`, which the model's state does not have."""
    means: Means
    """What the trace goes around."""
    frontend: str
    """How it was traced, and why."""


def trace(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    training: bool = True,
    split: Mapping[str, int | None] | None = None,
    frontend: str = "auto",
) -> Traced:
    """Traces a model with one micro-batch of inputs, which may be on the meta device.

    The model is left as it was: its mode, buffers and hooks.

    Raises:
        ArgumentError: the example does not fit the model, or there is no such frontend.
        TraceError: the model cannot be traced, or fails on the example; names the user's line.
    """
    if frontend not in FRONTENDS:
        raise ArgumentError(f"no frontend {frontend!r}; choose {', '.join(FRONTENDS)}")
    example = prepare(model, args, kwargs or {}, split or {})
    traced = _both(model, example, training, split or {}, frontend)
    return replace(traced, graph=verify(traced.graph))


def _both(
    model: nn.Module,
    example: Example,
    training: bool,
    split: Mapping[str, int | None],
    frontend: str,
) -> Traced:
    """The trace, able to run in eval mode too where it is for training."""
    traced = _traced(model, example, training, split, frontend)
    if training and (places := mode_reads(model)):
        graph = _in_both_modes(model, example, traced, places, split, frontend)
        traced = replace(traced, graph=graph)
    return traced


def _traced(
    model: nn.Module,
    example: Example,
    training: bool,
    split: Mapping[str, int | None],
    frontend: str,
    means: Means | None = None,
) -> Traced:
    with _mode(model, training):
        around = export_around(model, example, frontend, means)
        if around.means.recorded is not None:
            more = frontend != "recorded"
            check_repeats(model, example, around.exported.program, more=more)
        exported = around.exported
        constants = _constants(exported.program)
        table = weight_table(model, constants)
        graph = _graph(model, exported, example, table, training)
    modules = outside(model, around.means.opaque)
    notes = (*graph.notes, *_notes(around, training), *_frozen(modules, graph.inputs, training))
    graph = replace(graph, notes=notes)
    if example.rows == 1:
        graph = rehint(graph, _batch_symbols(graph.inputs))
    graph = renamed(whole_inputs(graph, split))
    return Traced(graph, constants, around.means, _account(around))


def _account(around: Around) -> str:
    """How a model was traced, and why not whole."""
    opaque, decisions = around.means.opaque, around.decisions
    ways = []
    if opaque:
        more = ", …" if len(opaque) > 3 else ""
        run = "module that runs as it is" if len(opaque) == 1 else "modules that run as they are"
        ways += [f"around {len(opaque)} {run} ({', '.join(opaque[:3])}{more})"]
    if decisions:
        plural = "" if len(decisions) == 1 else "s"
        ways += [f"with {len(decisions)} decision{plural} by data as the example decides"]
    whole = " ".join(["torch.export", *ways[:1], *(f"and {way}" for way in ways[1:])])
    reasons = "; ".join(reason.replace("\n", " ") for reason in around.reasons)
    return f"{whole}: {reasons}" if ways and reasons else whole


def _notes(around: Around, training: bool) -> list[str]:
    notes = [f"traced with {_account(around)}"] if around.means.opaque else []
    if around.means.frozen_draws and around.drew:
        notes.append(
            "forward draws from Python's or numpy's generator: every step keeps what the trace "
            "drew; draw with torch.rand"
        )
    if training and not recognised():
        notes.append(
            f"torch {torch.__version__} does not show what activation checkpointing covers: the "
            "stages keep what the model's own checkpoints would compute again; choose recompute="
        )
    return notes + [
        f"forward decides by data at {decision}: a micro-batch that decides otherwise raises"
        for decision in around.decisions
    ]


def _frozen(modules: Sequence[nn.Module], inputs: Sequence[Input], training: bool) -> list[str]:
    """Python values that the trace took for granted."""
    given = [
        f"{item.path}={item.constant!r}"
        for item in inputs
        if item.value is None and item.constant is not None and item.path not in QUIET
    ]
    notes = [f"traced with {', '.join(given)}: a step with another value is refused"] * bool(given)
    notes += [
        f"{place} asks whether the model is being traced; the stages do what it does then"
        for place in asking_lines(modules)
    ]
    notes += [
        f"{place} asks whether gradients are recorded; the stages always do what it does in "
        f"{'training' if training else 'inference'}"
        for place in recording_lines(modules)
    ]
    return notes + [
        f"{place} seeds a generator, and the stages do not: what they draw depends on the step's "
        "seed, the op and the micro-batch. Draw what is to stay the same once, into a buffer, or "
        "from a torch.Generator in a module of its own, which then runs as it is"
        for place in seeding_lines(modules)
    ]


def _in_both_modes(
    model: nn.Module,
    example: Example,
    train: Traced,
    places: Sequence[str],
    split: Mapping[str, int | None],
    frontend: str,
) -> Graph:
    """The training graph, able to run in eval mode too; or refusing to, where it cannot be."""
    try:
        evaluated = _traced(model, example, False, split, frontend, train.means)
        if not _equal(train.constants, evaluated.constants):
            raise NoMatch("tensors that its code makes differ between train and eval mode")
        return align(train.graph, evaluated.graph)
    except (NoMatch, TraceError) as error:
        fault = str(error).splitlines()[0]
        shown = ", ".join(short_path(place) for place in places[:3])
        return refuse_eval(
            train.graph,
            f"{train.graph.name} runs other code in eval than in train mode ({shown}), and the two "
            f"cannot be one program: {fault}. Plan again with partition(..., training=False)",
        )


def _equal(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    return set(a) == set(b) and all(t.is_meta or torch.equal(t, b[name]) for name, t in a.items())


@contextlib.contextmanager
def _mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Puts the model in the mode it is traced in; modules the user froze in eval stay so."""
    before = [(module, module.training) for module in model.modules()]
    if model.training != training:
        model.train(training)
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


def _constants(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    kinds = torch.export.graph_signature.InputKind
    specs = program.graph_signature.input_specs
    custom = [s.target for s in specs if s.kind is kinds.CUSTOM_OBJ]
    if custom:
        raise TraceError(
            "the model holds script objects, which a stage cannot carry: "
            + ", ".join(map(str, custom))
        )
    names = [str(s.target) for s in specs if s.kind is kinds.CONSTANT_TENSOR]
    return {name: program.constants[name] for name in names}


def _graph(
    model: nn.Module,
    exported: Exported,
    example: Example,
    table: WeightTable,
    training: bool,
) -> Graph:
    program = exported.program
    signature = program.graph_signature
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    lowering = Lowering(model)
    lowering.values.update(weight_arguments(signature, nodes, table.canonical.__getitem__))
    inputs = _inputs(program, nodes, example, lowering)
    outputs = lowering.run(program.graph_module, ())
    return Graph(
        name="".join(c if c.isalnum() else "_" for c in type(model).__name__),
        inputs=inputs,
        weights=table.weights,
        ops=tuple(lowering.ops),
        outputs=tuple(outputs),
        input_tree=dump_tree(flatten(example.kwargs)[1]),
        output_tree=dump_tree(program.call_spec.out_spec),
        parameters=example.parameters,
        ranges=_ranges(exported, _batch_symbols(inputs)),
        training=training,
        notes=exported.notes,
    )


def _inputs(
    program: torch.export.ExportedProgram,
    nodes: Mapping[str, torch.fx.Node],
    example: Example,
    lowering: Lowering,
) -> tuple[Input, ...]:
    kind = torch.export.graph_signature.InputKind.USER_INPUT
    specs = [s for s in program.graph_signature.input_specs if s.kind is kind]
    leaves, _ = flatten(example.kwargs)
    paths = leaf_paths(example.kwargs)
    found = []
    for spec, leaf, path, batched in zip(specs, leaves, paths, example.batched, strict=True):
        node = nodes[spec.arg.name]
        if isinstance(leaf, torch.Tensor):
            value = Value(lowering.fresh(node.name), symbols.type_of(node.meta["val"]))
            lowering.values[node] = Ref(value.name)
            found.append(Input(path, value, 0 if batched else None))
        else:
            lowering.values[node] = leaf
            found.append(Input(path, None, None, leaf))
    return tuple(found)


def _ranges(exported: Exported, batch: Mapping[str, int]) -> tuple[Range, ...]:
    found = []
    for symbol, bounds in exported.program.range_constraints.items():
        # A trace with two rows says "2 or more" of any batch; one row runs as well.
        least = 1 if int(bounds.lower) <= 2 else int(bounds.lower)
        most = symbols.most_of(bounds)
        if str(symbol) in batch:
            least = max(least, exported.least_rows)
            most = min(filter(None, (most, exported.most_rows)), default=None)
        found.append(Range(str(symbol), least, most))
    return tuple(found)


def _batch_symbols(inputs: Sequence[Input]) -> dict[str, int]:
    """The symbols of the leading dimensions that are cut, at one row."""
    split = [i.value for i in inputs if i.value is not None and i.split_dim == 0]
    dims = [value.type.shape[0] for value in split]  # type: ignore[union-attr]
    return {d.expression: 1 for d in dims if not isinstance(d, int)}
