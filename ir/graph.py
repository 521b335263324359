"""The graph: a program of ops in an order that can be run as it stands.

Everything is frozen. A pass returns a new graph; nothing is changed in place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from stagecut.ir.cost import Cost
from stagecut.ir.types import TensorType, Type


@dataclass(frozen=True, slots=True)
class Ref:
    """An argument that is a value of the graph; prints as `%name`."""

    name: str


@dataclass(frozen=True, slots=True)
class WeightRef:
    """An argument that is a weight of the graph; prints as `@transformer.wte.weight`."""

    name: str


@dataclass(frozen=True, slots=True)
class TorchConstant:
    """A dtype, layout or memory format; prints as `torch.float32`."""

    name: str


@dataclass(frozen=True, slots=True)
class StageDevice:
    """The device of whichever stage runs the op; prints as `stage_device`."""


@dataclass(frozen=True, slots=True)
class ByMode:
    """A constant that depends on `training`; prints as `mode(train, eval)`."""

    train: int | float | bool
    eval: int | float | bool


Literal_ = int | float | complex | bool | str | None
Arg = Ref | WeightRef | TorchConstant | StageDevice | ByMode | Literal_ | tuple["Arg", ...]


@dataclass(frozen=True, slots=True)
class GradMode:
    """The op runs under `torch.set_grad_enabled(enabled)`."""

    enabled: bool


@dataclass(frozen=True, slots=True)
class Autocast:
    """The op runs under `torch.autocast` on the stage's device."""

    dtype: str
    """`bfloat16` or `float16`."""
    enabled: bool


@dataclass(frozen=True, slots=True)
class Recompute:
    """The op is recomputed in the backward, together with its group."""

    group: int


@dataclass(frozen=True, slots=True)
class Mode:
    """The op runs only while training, or only in eval."""

    training: bool


Context = GradMode | Autocast | Recompute | Mode


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor or a number that an input or an op makes."""

    name: str
    """A Python identifier, unique in the graph."""
    type: Type
    requires_grad: bool = False
    """Whether autograd tracks it in training, given the weights that train."""


@dataclass(frozen=True, slots=True)
class Input:
    """One leaf of the model's inputs, in pytree order."""

    path: str
    """How the user writes it: `input_ids`, `batch['x']`."""
    value: Value | None
    """None for a leaf that is a constant of the trace."""
    split_dim: int | None = None
    """The dimension along which micro-batches are cut; None: every micro-batch gets it whole."""
    constant: Literal_ = None
    """What a constant leaf was when traced."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the model's state, by identity: tied names are one weight."""

    name: str
    """Its first name, as `named_parameters()` gives it."""
    type: TensorType
    kind: Literal["parameter", "buffer", "constant"]
    trainable: bool = False
    persistent: bool = True
    """Whether `state_dict()` has it."""
    aliases: tuple[str, ...] = ()
    """Its other names."""


@dataclass(frozen=True, slots=True)
class Effects:
    """What an op does besides computing its results."""

    mutates: tuple[str, ...] = ()
    """Names of the values and weights it writes."""
    aliases: tuple[str, ...] = ()
    """Names of the values and weights its results may share storage with."""
    random: bool = False
    """Whether it draws random numbers."""

    @property
    def pure(self) -> bool:
        """Running it twice, or not at all, changes nothing else."""
        return not self.mutates and not self.random


@dataclass(frozen=True, slots=True)
class Op:
    """One call."""

    name: str
    """Unique among the ops; the name of the first result where there is one."""
    target: str
    """Qualified: `aten.linear.default`, `operator.mul`, `module:encoder.lstm`."""
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...] = ()
    results: tuple[Value, ...] = ()
    sequence: bool = False
    """Whether the call returns a tuple or list, whose elements are `results`."""
    scope: str = ""
    """The module path the user knows: `transformer.h.3.mlp`."""
    source: str = ""
    """The user's `file:line`."""
    context: tuple[Context, ...] = ()
    """Regions the op runs in, outermost first."""
    effects: Effects = Effects()
    cost: Cost | None = None
    refs: tuple[Ref | WeightRef, ...] = field(init=False, repr=False, compare=False)
    """What `args` and `kwargs` name, in order; collected once, as every pass asks for it."""

    def __post_init__(self) -> None:
        found: list[Ref | WeightRef] = []
        _collect(self.args, found)
        _collect((arg for _, arg in self.kwargs), found)
        object.__setattr__(self, "refs", tuple(found))


@dataclass(frozen=True, slots=True)
class Range:
    """The sizes a symbol may take."""

    symbol: str
    least: int
    most: int | None
    """None: no limit."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A traced model."""

    name: str
    """The model's class."""
    inputs: tuple[Input, ...]
    weights: tuple[Weight, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Arg, ...]
    """One a leaf of the output tree."""
    input_tree: str = ""
    """The pytree of the inputs as a keyword dict, serialised by the frontend."""
    output_tree: str = ""
    """The pytree of the outputs."""
    parameters: tuple[str, ...] = ()
    """Names of forward's positional parameters, in order."""
    ranges: tuple[Range, ...] = ()
    training: bool = True
    """The mode it was traced in."""
    notes: tuple[str, ...] = ()
    """What the user should know about the trace, one sentence each."""


def refs(arg: Arg) -> list[Ref | WeightRef]:
    """Every value and weight an argument names, left to right."""
    found: list[Ref | WeightRef] = []
    _collect((arg,), found)
    return found


def op_refs(op: Op) -> tuple[Ref | WeightRef, ...]:
    """Every value and weight an op reads, in argument order."""
    return op.refs


def _collect(args: Iterable[Arg], found: list[Ref | WeightRef]) -> None:
    for arg in args:
        if isinstance(arg, Ref) or isinstance(arg, WeightRef):  # noqa: SIM101 - twice as fast
            found.append(arg)
        elif isinstance(arg, tuple):
            _collect(arg, found)


def reads(op: Op) -> tuple[str, ...]:
    """The names of the values an op reads, each once."""
    return tuple(dict.fromkeys(ref.name for ref in op_refs(op) if isinstance(ref, Ref)))


def weight_reads(op: Op) -> tuple[str, ...]:
    """The names of the weights an op reads, each once."""
    return tuple(dict.fromkeys(ref.name for ref in op_refs(op) if isinstance(ref, WeightRef)))
