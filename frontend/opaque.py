"""Modules that cannot be traced become one op each, around which the rest is traced as usual.

    encoder.layers.0   branches on the values of a tensor      %h = module:encoder.layers.0(%x)

The op is the user's own module, called as it is; its insides cannot be cut. While tracing, its
`forward` is replaced by a call of `stagecut::module`, whose results have the shapes that a run of
the example found; afterwards nothing of this is left on the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stagecut.frontend.example import Example
from stagecut.frontend.generators import Drawn
from stagecut.frontend.keeping import KEPT_BY_TORCH
from stagecut.frontend.other_arguments import OtherArguments, check_runs, other_arguments
from stagecut.frontend.running import as_it_is, one_row_more, replaced, run
from stagecut.frontend.trees import Tree, flatten, unflatten
from stagecut.ir.errors import TraceError

TARGET = "stagecut.module.default"
_PLAIN = (bool, int, float, str, type(None))


@torch.library.custom_op("stagecut::module", mutates_args=())
def _module(inputs: Sequence[torch.Tensor], call: str, sizes: Sequence[int]) -> list[torch.Tensor]:
    raise NotImplementedError("stagecut::module exists in traces alone")


@_module.register_fake
def _(inputs: Sequence[torch.Tensor], call: str, sizes: Sequence[int]) -> list[torch.Tensor]:
    rest, made = list(sizes), []
    for rank, dtype in json.loads(call)["results"]:
        shape, rest = rest[:rank], rest[rank:]
        made.append(inputs[0].new_empty(shape, dtype=getattr(torch, dtype)))
    return made


class Unfit(TraceError):
    """A module's inputs or outputs are not what one op can take or give."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


@dataclass(slots=True)
class _Seen:
    """The calls of one module in two runs of the example, the second with one row more."""

    shapes_in: list[list[tuple[int, ...] | None]] = field(default_factory=list)
    """For each call, the shape of each leaf of its arguments; None for what is no tensor."""
    outputs: list[tuple[list[Any], Tree]] = field(default_factory=list)
    """For each call its output: meta tensors and constants, and the container."""
    written: set[int] = field(default_factory=set)
    """Which of the tensors that go in are written in place, by any call."""
    shared: set[int] = field(default_factory=set)
    """Which of them a result shares memory with: a module may return what it is given."""
    generators: set[torch.Generator] = field(default_factory=set)
    """Those of its own that it draws from."""


@contextmanager
def opaque_modules(model: nn.Module, example: Example, paths: Sequence[str]) -> Iterator[None]:
    """Inside, calls of the modules at `paths` are traced as one op each.

    Raises:
        Unfit: names a module that cannot be one op; its parent may.
        TraceError: the example cannot be run to see what the modules make of it.
        ExampleFails: the model raises when it is run.
        FailsInTrace: afterwards, a module raises on arguments that it has in the trace alone.
    """
    if not paths:
        yield
        return
    _check_buffers(model, paths)
    rows = example.rows if example.rows > 1 else 2
    first, second = _watch(model, example, paths)
    others: list[OtherArguments] = []

    def noting(path: str) -> Callable[..., Any]:
        stub, module = _stub(path, first[path], second[path], rows), model.get_submodule(path)
        shapes = iter(first[path].shapes_in)

        def call(*args: Any, **kwargs: Any) -> Any:
            other = other_arguments(path, module, args, kwargs, next(shapes, ()))
            others.extend([other] if other else [])
            return stub(*args, **kwargs)

        return call

    with replaced(model, {path: noting(path) for path in paths}):
        yield
    for other in others:
        check_runs(model, other)


def call_of(text: str) -> dict[str, Any]:
    """What an op's text says: `path`, `args`, `kwargs`, `written` and `shared`.

    A tensor among the arguments is `{"tensor": i}`; the last two are such numbers.
    """
    found: dict[str, Any] = json.loads(text)
    return found


def _check_buffers(model: nn.Module, paths: Sequence[str]) -> None:
    modules = dict(model.named_modules(remove_duplicate=False))
    for path in paths:
        same = [other for other in paths if modules[other] is modules[path]]
        if len(same) > 1 and next(modules[path].buffers(), None) is not None:
            raise Unfit(path, "it is used under two names and has buffers")


def _watch(
    model: nn.Module, example: Example, paths: Sequence[str]
) -> tuple[dict[str, _Seen], dict[str, _Seen]]:
    """What the modules at `paths` get and give in a run, and in a second with one row more.

    Raises:
        Unfit: other code changes a module's own attributes between its calls, or two draw from one
            generator.
    """
    runs = [{path: _Seen() for path in paths}]
    left: dict[str, dict[tuple[int, str], Any]] = {}

    def again() -> dict[str, Any]:
        runs.append({path: _Seen() for path in paths})
        return one_row_more(example)

    def watching(path: str) -> Callable[..., Any]:
        own = model.get_submodule(path)
        module = as_it_is(own)

        def call(*args: Any, **given: Any) -> Any:
            seen = runs[-1]
            _check_left(path, left.get(path), _attributes(own))
            leaves, _ = flatten((args, given))
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            versions = [tensor._version for tensor in tensors]
            with Drawn() as drawn:
                out = module(*args, **given)
            seen[path].generators |= drawn.states.keys()
            left[path] = _attributes(own)
            seen[path].written |= {
                i for i, tensor in enumerate(tensors) if tensor._version != versions[i]
            }
            seen[path].shapes_in.append([_shape(leaf) for leaf in leaves])
            made, tree = flatten(out)
            places = {leaf.untyped_storage().data_ptr() for leaf in made if _is_tensor(leaf)}
            seen[path].shared |= {
                i for i, t in enumerate(tensors) if t.untyped_storage().data_ptr() in places
            }
            seen[path].outputs.append((list(map(_outline, made)), tree))
            return out

        return call

    run(model, example, example.kwargs, {path: watching(path) for path in paths}, again=again)
    _check_generators(runs[0])
    return runs[0], runs[1]


def _check_generators(seen: Mapping[str, _Seen]) -> None:
    """Stages have their own copies of a generator, which must not draw the same numbers."""
    owners: dict[torch.Generator, str] = {}
    for path, calls in seen.items():
        for generator in calls.generators:
            owner = owners.setdefault(generator, path)
            if owner != path:
                raise Unfit(path, f"it draws from the generator that {owner} draws from")


def _attributes(module: nn.Module) -> dict[tuple[int, str], Any]:
    """What a module and all inside it keep in plain attributes."""
    return {
        (number, name): value
        for number, inner in enumerate(module.modules())
        for name, value in vars(inner).items()
        if name not in KEPT_BY_TORCH and name not in ("training", "forward")
    }


def _check_left(
    path: str, before: dict[tuple[int, str], Any] | None, now: dict[tuple[int, str], Any]
) -> None:
    """A stage runs the module and not the code around it, which must not reset it."""
    for key, value in (before or {}).items():
        if now.get(key) is not value and not (type(value) in _PLAIN and now.get(key) == value):
            raise Unfit(path, f"other code changes its attribute {key[1]} between calls")


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def _shape(leaf: Any) -> tuple[int, ...] | None:
    return tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else None


def _outline(leaf: Any) -> Any:
    return leaf.detach().to("meta") if isinstance(leaf, torch.Tensor) else leaf


def _stub(path: str, first: _Seen, second: _Seen, rows: int) -> Callable[..., Any]:
    """What stands for a module's forward in a trace: its calls, in the order they were seen."""
    if not first.outputs or len(first.outputs) != len(second.outputs):
        raise Unfit(path, "how often it is called depends on data")
    number = iter(range(len(first.outputs)))

    def call(*args: Any, **kwargs: Any) -> Any:
        index = next(number, None)
        if index is None:
            raise Unfit(path, "it is called more often in the trace than in a run")
        leaves, _ = flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not tensors:
            raise Unfit(path, "no tensor goes in")
        given, named = _numbered(path, [list(args), list(kwargs.values())])
        outputs, tree = first.outputs[index]
        shapes = _shapes_out(path, outputs, second.outputs[index][0])
        n_rows = _rows(leaves, first.shapes_in[index], second.shapes_in[index], rows)
        sizes = [_size(path, a, b, rows, n_rows) for pair in shapes for a, b in pair]
        results = [(o.ndim, str(o.dtype).removeprefix("torch.")) for o in outputs]
        text = {
            "path": path, "args": given, "kwargs": dict(zip(kwargs, named, strict=True)),
            "results": results, "sequence": not tree.is_leaf(),
            "written": sorted(first.written | second.written),
            "shared": sorted(first.shared | second.shared),
        }  # fmt: skip
        _check_container(path, outputs, tree)
        made = torch.ops.stagecut.module(tensors, json.dumps(text), sizes)
        return unflatten(made, tree)

    return call


def _check_container(path: str, outputs: Sequence[Any], tree: Tree) -> None:
    flat = tree.is_leaf() or all(child.is_leaf() for child in tree.children())
    if tree.type not in (None, tuple, list):
        raise Unfit(path, f"it returns a {getattr(tree.type, '__name__', tree.type)}")
    if not flat:
        raise Unfit(path, f"it returns a {tree.type.__name__} that is not of tensors alone")


def _numbered(path: str, given: Any) -> Any:
    """Arguments as JSON, tensors as `{"tensor": i}`."""
    count = iter(range(10**6))

    def plain(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            return {"tensor": next(count)}
        if isinstance(item, tuple | list):
            return [plain(value) for value in item]
        if type(item) in _PLAIN:
            return item
        raise Unfit(path, f"it is given a {type(item).__name__}")

    return plain(given)


def _shapes_out(
    path: str, first: Sequence[Any], second: Sequence[Any]
) -> list[list[tuple[int, int]]]:
    pairs = []
    for a, b in zip(first, second, strict=True):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or a.ndim != b.ndim:
            raise Unfit(path, f"it returns a {type(a).__name__} beside tensors")
        pairs.append(list(zip(a.shape, b.shape, strict=True)))
    return pairs


def _rows(
    leaves: Sequence[Any],
    first: Sequence[tuple[int, ...] | None],
    second: Sequence[tuple[int, ...] | None],
    rows: int,
) -> Any:
    """The trace's own number of rows, from a dimension of an argument that has it."""
    for leaf, a, b in zip(leaves, first, second, strict=True):
        for dimension, pair in enumerate(zip(a or (), b or (), strict=True)):
            if pair == (rows, rows + 1):
                return leaf.shape[dimension]
    return None


def _size(path: str, a: int, b: int, rows: int, n_rows: Any) -> Any:
    """A size that was `a` with `rows` and `b` with one more."""
    if a == b:
        return a
    if n_rows is None:
        raise Unfit(path, "its results grow with the batch and its inputs do not")
    return (b - a) * n_rows + (a - (b - a) * rows)
