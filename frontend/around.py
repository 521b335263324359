"""Traces a model whole, or around what cannot be traced.

whole ──fails in a module──▶ around it, as one op ──fails in the model itself──▶ its decisions by
data as the example takes them, each checked whenever the stage runs
"""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from torch import nn

from stagecut.frontend.backwards import Untraceable, check_transforms, with_backward_hooks
from stagecut.frontend.decisions import Decision, Recorded, Recorder
from stagecut.frontend.draws import drawing_modules
from stagecut.frontend.example import Example
from stagecut.frontend.explaining import ExampleFails
from stagecut.frontend.exporting import Exported, export
from stagecut.frontend.keeping import python_draws
from stagecut.frontend.opaque import Unfit, opaque_modules
from stagecut.frontend.running import as_it_is, can_run, negated, one_row_more, run
from stagecut.ir.errors import TraceError

FRONTENDS = ("auto", "export", "symbolic", "recorded")
_ATTEMPTS = 16
_CONSTANT = re.compile(r"model attribute: ([\w.]+)\.lifted_tensor")
"""How torch.export names the module of a tensor that it could not follow."""


@dataclass(frozen=True, slots=True)
class Means:
    """What a trace goes around."""

    opaque: tuple[str, ...] = ()
    """Paths of the modules that are one op each."""
    recorded: Recorded | None = None
    """Whose decisions by data are those of the example; None: nobody's."""
    frozen_draws: bool = False
    """Whether what Python's generators drew stays as it was drawn."""


@dataclass(frozen=True, slots=True)
class Around:
    """A trace, and what it went around."""

    exported: Exported
    means: Means
    reasons: tuple[str, ...]
    """Why, one a failure."""
    decisions: tuple[Decision, ...] = ()
    """What the example decided, where `means.recorded`."""
    drew: bool = False
    """Whether Python code that was traced drew random numbers."""


class _NothingToRecord(TraceError):
    """There are no decisions of the kinds that are to be recorded."""


class _Draws(Exception):
    """Modules draw random numbers in Python, which a trace would draw once for good."""

    def __init__(self, paths: Sequence[str]) -> None:
        named = ", ".join(filter(None, paths)) or "the model"
        super().__init__(f"{named} draws from Python's or numpy's generator")
        self.paths = paths


def export_around(
    model: nn.Module, example: Example, frontend: str, means: Means | None = None
) -> Around:
    """The model's trace, around what stands in its way.

    Args:
        model: In the mode it is traced in.
        example: What it is traced with.
        frontend: `export`, only whole; `symbolic`, modules that cannot be traced become one op
            each; `recorded`, decisions by data are those of the example; `auto`, in this order,
            and decisions only if other inputs decide alike.
        means: What is known to be needed.

    Raises:
        ExampleFails: the model raises on the example.
        TraceError: the first failure, where no means helps.
    """
    hooked = () if frontend == "export" or not model.training else with_backward_hooks(model)
    means = means or Means(
        opaque=_outermost(hooked),
        recorded=Recorded(None) if frontend == "recorded" else None,
        frozen_draws=frontend == "export",
    )
    reasons = [f"{path} has backward hooks" for path in means.opaque if path in hooked]
    first: TraceError | None = None
    for _ in range(_ATTEMPTS):
        following: Means | None
        try:
            recorder = _recorder(model, example, means, cautious=frontend != "recorded")
            if recorder and first and not recorder.decisions:
                raise _NothingToRecord("the model takes no decision by data")
            return _attempt(model, example, means, tuple(reasons), recorder)
        except ExampleFails:
            raise
        except _Draws as error:
            reasons.append(str(error))
            alike = [path for own in error.paths for path in _alike(model, own)]
            following = _with(means, alike) or replace(means, frozen_draws=True)
        except Unfit as error:
            reasons.append(str(error))
            following = _wider(means, error.path)
        except _NothingToRecord:
            following = _recording(means)
        except TraceError as error:
            first = first or error
            cause = error.__cause__
            if isinstance(cause, Unfit):
                following = _wider(means, cause.path)
            else:
                reasons.append("\n".join(str(error).splitlines()[:3]))
                known = error.path if isinstance(error, Untraceable) else None
                culprit = _culprit(model, error, means.opaque) if known is None else known
                following = _aside(model, means, culprit)
        if frontend == "export":
            break
        if following is None and frontend != "symbolic":
            following = _recording(means)
        if following is None:
            break
        means = following
    _check_runs(model, example)
    failure = first or TraceError("\n".join(reasons))
    if means.recorded and reasons[-1] not in str(failure):
        raise TraceError(f"{failure}\n  Nor as the example decides: {reasons[-1]}") from failure
    raise failure


def _attempt(
    model: nn.Module,
    example: Example,
    means: Means,
    reasons: tuple[str, ...],
    recorder: Recorder | None,
) -> Around:
    whole = not means.opaque and means.recorded is None
    with opaque_modules(model, example, means.opaque), python_draws() as drawn:
        exported = export(model, example, lengths=whole, recorder=recorder)
        check_transforms(exported.program.graph)
        drew = drawn()
        if drew and not means.frozen_draws:
            raise _Draws(drawing_modules(model, example))
    decisions = tuple(dict.fromkeys(recorder.repeated)) if recorder else ()
    return Around(exported, means, reasons, decisions, drew)


def _recorder(
    model: nn.Module, example: Example, means: Means, *, cautious: bool
) -> Recorder | None:
    """The decisions of a run; where `cautious`, other inputs have to decide alike."""
    if means.recorded is None:
        return None
    recorder = Recorder(model, means.recorded)
    aside = {path: recorder.aside(as_it_is(model.get_submodule(path))) for path in means.opaque}

    def decided(kwargs: Mapping[str, Any]) -> list[Decision]:
        run(model, example, kwargs, aside, recorder.noting())
        return recorder.decisions

    decisions = decided(example.kwargs)
    if cautious:
        _check_alike(decisions, decided(one_row_more(example)), "its first row once more")
        # What raises on other values is a check of the input, not a way to go.
        with contextlib.suppress(ExampleFails):
            _check_alike(decisions, decided(negated(example)), "its numbers negated")
    recorder.decisions = decisions
    return recorder


def _check_alike(decisions: list[Decision], others: list[Decision], change: str) -> None:
    for here, there in zip(decisions, others, strict=False):
        if here != there:
            raise TraceError(
                f"{here.place} decides by data, `{here.line}`: {here.value} on the example and "
                f"{there.value} with {change}, so neither can stand for every batch. "
                'frontend="recorded" keeps the example\'s; a step that decides otherwise raises'
            )


def _check_runs(model: nn.Module, example: Example) -> None:
    """Raises what the model itself raises on the example, if it does."""
    if can_run(model):
        run(model, example, example.kwargs, {})


def _wider(means: Means, path: str) -> Means | None:
    """The parent of a module that cannot be one op becomes one; None where that is the model."""
    return _with(means, [_parent(path)]) if _parent(path) else None


def _aside(model: nn.Module, means: Means, path: str) -> Means | None:
    return _with(means, _alike(model, path))


def _recording(means: Means) -> Means | None:
    """The next best: the model's own decisions are recorded, then everyone's, then numbers too."""
    recorded = means.recorded
    if recorded is None:
        return replace(means, recorded=Recorded(frozenset({""})))
    if not recorded.numbers:
        return replace(means, recorded=Recorded(recorded.owners, numbers=True))
    return Means((), Recorded(None, numbers=True)) if recorded.owners is not None else None


def _with(means: Means, paths: list[str]) -> Means | None:
    """More paths, without those inside others; None where nothing is new."""
    outer = _outermost((*means.opaque, *paths))
    return None if outer == means.opaque else replace(means, opaque=outer)


def _outermost(paths: Sequence[str]) -> tuple[str, ...]:
    """Each path once, without those inside others."""
    joined = dict.fromkeys(paths)
    return tuple(p for p in joined if not any(p.startswith(f"{q}.") for q in joined))


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _alike(model: nn.Module, path: str) -> list[str]:
    """The module, and all others of its class: they run the same code."""
    if not path:
        return []
    kind = type(model.get_submodule(path))
    if kind.__module__.startswith("torch.nn.modules"):
        return [path]
    return [name for name, module in model.named_modules() if type(module) is kind and name]


def _culprit(model: nn.Module, error: BaseException, opaque: tuple[str, ...]) -> str:
    """The innermost module that was running when tracing failed; "" where it is the model."""
    named = _CONSTANT.search(str(error.__cause__))
    if named:
        return named[1]
    paths = {id(module): name for name, module in model.named_modules()}
    running = ""
    cause: BaseException | None = error.__cause__ or error
    for frame in _frames(cause):
        name = paths.get(id(frame.f_locals.get("self")))
        if name and frame.f_code.co_name in ("forward", "_call_impl") and name not in opaque:
            running = name
    return running


def _frames(error: BaseException | None) -> Iterator[FrameType]:
    if error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            yield frame
