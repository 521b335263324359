"""A stage as a Python file: a plain `nn.Module` that needs torch alone."""

from __future__ import annotations

from collections.abc import Mapping

from stagecut.codegen.statements import DECISION, body
from stagecut.codegen.wiring import StageWiring
from stagecut.ir.graph import Graph, Weight
from stagecut.ir.program import Port
from stagecut.ir.types import ScalarType, dim_hint

_SCOPE = '''

class Scope(nn.Module):
    """Holds weights under the names they have in the original model."""

    def __getitem__(self, name: str):
        return getattr(self, name)


def place(root: Scope, name: str) -> tuple[Scope, str]:
    """The scope of a dotted name, made where it is missing, and the name's last part."""
    *path, leaf = name.split(".")
    scope = root
    for part in path:
        if part not in dict(scope.named_children()):
            scope.add_module(part, Scope())
        scope = getattr(scope, part)
    return scope, leaf


def parameter(root: Scope, name: str, shape: tuple, dtype: torch.dtype, trainable: bool = True):
    """Declares a parameter; its values come from a checkpoint."""
    scope, leaf = place(root, name)
    value = torch.empty(shape, dtype=dtype)
    scope.register_parameter(leaf, nn.Parameter(value, requires_grad=trainable))


def buffer(root: Scope, name: str, shape: tuple, dtype: torch.dtype, persistent: bool = True):
    """Declares a buffer."""
    scope, leaf = place(root, name)
    scope.register_buffer(leaf, torch.empty(shape, dtype=dtype), persistent=persistent)


def tie(root: Scope, name: str, other: str):
    """Gives a declared weight a second name."""
    (scope, leaf), (holder, known) = place(root, name), place(root, other)
    setattr(scope, leaf, holder[known])
'''
OPAQUE = "opaque(self, "
"""How a stage declares a module of the user's own."""
PLACES = '''
def opaque(root: Scope, name: str):
    """A place for a module of the user's own; whoever loads the stage puts it there."""
    place(root, f"{name}.forward")
'''
_EXPECT = '''

def expect(tensor: torch.Tensor, value, place: str):
    """Data has to decide as it did when the model was planned."""
    found = tensor.tolist()
    if found != value:
        raise ValueError(
            f"{place} decides by data: it was {value} when planned and is {found} now; put what "
            "decides into a module of its own, which then runs as it is"
        )
'''
_RESEED = '''
    def reseed(self, op: int, device: torch.device) -> None:
        """Makes an op's draws depend on step and micro-batch, and not on where the model is cut."""
        if self.seed is None or torch.compiler.is_compiling():
            return
        generator = torch.default_generator
        if device.type == "cuda":
            generator = torch.cuda.default_generators[device.index]
        generator.manual_seed((self.seed * 1_000_003 + op) % 2**63)
'''


def stage_source(graph: Graph, stage: StageWiring, n_stages: int, draws: Mapping[str, int]) -> str:
    """The whole file of one stage; the same bytes for the same plan."""
    weights = {weight.name: weight for weight in graph.weights}
    held = [weights[name] for name in stage.weights]
    random = any(op.name in draws for op in stage.ops)
    lines = body(stage, draws)
    text = "\n".join(lines)
    return "\n".join(
        [
            _docstring(graph, stage, n_stages),
            *(["import math", ""] if "math." in text else []),
            *(["import operator", ""] if "operator." in text else []),
            "import torch",
            *(["import torch.nn.functional as F"] if "F." in text else []),
            "from torch import nn",
            *(["from torch.utils.checkpoint import checkpoint"] if "checkpoint(" in text else []),
            *(["", "aten = torch.ops.aten"] if "aten." in text else []),
            _helpers(stage),
            "",
            f"class {class_name(stage.index)}(Scope):",
            f'    """{_span(stage)}"""',
            "",
            "    def __init__(self) -> None:",
            "        super().__init__()",
            *(["        self.seed: int | None = None"] if random else []),
            *(f'        {OPAQUE}"{path}")' for path in stage_modules(stage)),
            *(line for weight in held for line in _declaration(weight)),
            *(_RESEED.splitlines() if random else []),
            "",
            f"    def forward(self{''.join(f', {_parameter(p)}' for p in stage.inputs)}):",
            *lines,
            "",
        ]
    )


def _helpers(stage: StageWiring) -> str:
    opaque = f"\n{PLACES}" if stage_modules(stage) else ""
    decides = _EXPECT if any(op.target == DECISION for op in stage.ops) else ""
    return "\n".join(part.rstrip("\n") for part in (_SCOPE, opaque, decides) if part) + "\n"


def class_name(index: int) -> str:
    """The class of a stage."""
    return f"Stage{index}"


def _docstring(graph: Graph, stage: StageWiring, n_stages: int) -> str:
    lines = [f'"""Stage {stage.index} of {n_stages} of {graph.name}, written by Stagecut.', ""]
    lines += ["Receives:", *map(_port_line, stage.inputs)] if stage.inputs else []
    lines += ["", "Returns:", *map(_port_line, stage.results)] if stage.results else []
    return "\n".join([*lines, '"""', ""])


def _port_line(port: Port) -> str:
    made = "the model's input" if port.stage is None else f"of stage {port.stage}"
    return f"    {port.name}: {port.type}, {made}"


def _span(stage: StageWiring) -> str:
    scopes = list(dict.fromkeys(op.scope for op in stage.ops if op.scope))
    if not scopes:
        return f"{len(stage.ops)} ops."
    return f"From {scopes[0]} to {scopes[-1]}." if len(scopes) > 1 else f"{scopes[0]}."


def _parameter(port: Port) -> str:
    kind = port.type.kind if isinstance(port.type, ScalarType) else "torch.Tensor"
    return f"{port.name}: {kind}"


def stage_modules(stage: StageWiring) -> tuple[str, ...]:
    """Paths of the user's own modules that a stage calls."""
    paths = (op.target.removeprefix("module:") for op in stage.ops if ":" in op.target)
    return tuple(dict.fromkeys(paths))


def _declaration(weight: Weight) -> list[str]:
    shape = tuple(dim_hint(dim) for dim in weight.type.shape)
    given = f'self, "{weight.name}", {shape}, torch.{weight.type.dtype}'
    if weight.kind == "parameter":
        line = f"parameter({given}{'' if weight.trainable else ', trainable=False'})"
    else:
        persistent = weight.kind == "buffer" and weight.persistent
        line = f"buffer({given}{'' if persistent else ', persistent=False'})"
    ties = [f'tie(self, "{alias}", "{weight.name}")' for alias in weight.aliases]
    return [f"        {text}" for text in (line, *ties)]
