"""Traces a model whole, or around what cannot be traced.

whole ──fails in a module──▶ around it, as one op ──fails in the model itself──▶ its decisions by
data as the example takes them, each checked whenever the stage runs

A module that holds most of the model in a list of blocks is treated as the model itself, as long as
other inputs decide alike: as one op it could not be cut.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from stagecut.frontend.backwards import Untraceable, check_transforms, with_backward_hooks
from stagecut.frontend.culprits import alike, culprit_of, holds_blocks, outermost, parent
from stagecut.frontend.decisions import Decision, Recorded, Recorder
from stagecut.frontend.draws import drawing_modules
from stagecut.frontend.example import Example
from stagecut.frontend.explaining import ExampleFails
from stagecut.frontend.exporting import Exported, export
from stagecut.frontend.keeping import python_draws
from stagecut.frontend.opaque import Unfit, opaque_modules
from stagecut.frontend.other_arguments import FailsInTrace
from stagecut.frontend.running import as_it_is, can_run, negated, one_row_more, run
from stagecut.ir.errors import TraceError

FRONTENDS = ("auto", "export", "symbolic", "recorded")
_ATTEMPTS = 16
_SEEDS = 6
"""Runs with other random draws, to see whether a decision is one of them."""


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


class _Torn(TraceError):
    """A decision is another one for other inputs."""


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
    search = _Search(model, example, frontend)
    following: Means | None = means or search.start()
    while following is not None and search.attempts < _ATTEMPTS:
        means = following
        found = search.attempt(means)
        if isinstance(found, Around):
            return found
        following = found
        if following is None and frontend in ("auto", "recorded"):
            following = _recording(means)
        if frontend == "export":
            break
    raise search.failure(means)


@dataclass(slots=True)
class _Search:
    """The way from one failure to the next means."""

    model: nn.Module
    example: Example
    frontend: str
    reasons: list[str] = field(default_factory=list)
    first: TraceError | None = None
    unfit: Unfit | None = None
    """Why the first module could not be set aside."""
    tried: set[str] = field(default_factory=set)
    """Modules whose decisions were recorded, as far as they go."""
    attempts: int = 0

    def start(self) -> Means:
        """What is known to be needed before the first attempt."""
        alone = self.frontend == "export"
        hooked = [] if alone or not self.model.training else with_backward_hooks(self.model)
        opaque = outermost(hooked)
        self.reasons += [f"{path} has backward hooks" for path in opaque]
        recorded = Recorded(None) if self.frontend == "recorded" else None
        return Means(opaque, recorded, frozen_draws=alone)

    def attempt(self, means: Means) -> Around | Means | None:
        """The trace, or what to try next; None where nothing is left.

        Raises:
            ExampleFails: the model raises on the example.
            FailsInTrace: a module set aside raises on the trace's own arguments.
        """
        self.attempts += 1
        try:
            recorder = self._recorder(means)
            return _attempt(self.model, self.example, means, tuple(self.reasons), recorder)
        except (ExampleFails, FailsInTrace):
            raise
        except _Draws as error:
            self.reasons.append(str(error))
            paths = [path for own in error.paths for path in alike(self.model, own)]
            return _with(means, paths) or replace(means, frozen_draws=True)
        except _NothingToRecord:
            return _undecided(self.model, means)
        except _Torn as error:
            self.reasons.append(str(error))
            return _undecided(self.model, means)
        except Unfit as error:
            self.unfit = self.unfit or error
            self.reasons.append(str(error))
            return _wider(means, error.path)
        except TraceError as error:
            self.first = self.first or error
            if isinstance(error.__cause__, Unfit):
                self.unfit = self.unfit or error.__cause__
                return _wider(means, error.__cause__.path)
            self.reasons.append("\n".join(str(error).splitlines()[:3]))
            return self._around(means, error)

    def failure(self, means: Means | None) -> TraceError:
        """The error to raise in the end: the first, and why nothing could be done about it.

        Raises:
            ExampleFails: the model itself raises on the example.
        """
        if can_run(self.model):
            run(self.model, self.example, self.example.kwargs, {})
        failure = self.first or TraceError("\n".join(self.reasons))
        undone = [f"Nor around a module: {self.unfit}"] if self.unfit else []
        if means and means.recorded and self.reasons[-1] not in f"{failure}\n{self.unfit}":
            undone.append(f"Nor as the example decides: {self.reasons[-1]}")
        undone += self._elsewhere(failure)
        if not undone:
            return failure
        told = TraceError("\n  ".join([str(failure), *undone]))
        told.__cause__ = failure
        return told

    def _elsewhere(self, failure: TraceError) -> list[str]:
        """That a module may run as it is, where the frontend asked for does not go around it."""
        known = failure.path if isinstance(failure, Untraceable) else None
        path = culprit_of(self.model, failure, ()) if known is None else known
        if not path or self.frontend in ("auto", "symbolic"):
            return []
        return [
            f'This is frontend="{self.frontend}"; with frontend="auto" or "symbolic" {path} runs '
            "as it is, as one op, where it can"
        ]

    def _recorder(self, means: Means) -> Recorder | None:
        cautious = self.frontend != "recorded"
        recorder = _recorder(self.model, self.example, means, cautious=cautious)
        if recorder and self.first and not recorder.decisions:
            raise _NothingToRecord("the model takes no decision by data")
        return recorder

    def _around(self, means: Means, error: TraceError) -> Means | None:
        known = error.path if isinstance(error, Untraceable) else None
        culprit = culprit_of(self.model, error, means.opaque) if known is None else known
        untried = self.frontend == "auto" and culprit not in self.tried
        if untried and holds_blocks(self.model, culprit):
            self.tried.add(culprit)
            return _deciding(means, culprit)
        return _with(means, alike(self.model, culprit))


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

    def decided(kwargs: Mapping[str, Any], seed: int | None = None) -> list[Decision]:
        run(model, example, kwargs, aside, recorder.noting(), seed)
        return recorder.decisions

    decisions = decided(example.kwargs)
    if cautious:
        draws = range(_SEEDS) if recorder.drew else ()
        _check_alike(decisions, decided(one_row_more(example)), "its first row once more")
        # What raises on other values is a check of the input, not a way to go.
        with contextlib.suppress(ExampleFails):
            _check_alike(decisions, decided(negated(example)), "its numbers negated")
        for seed in draws:
            _check_alike(decisions, decided(example.kwargs, seed), "other random draws")
    recorder.decisions = decisions
    return recorder


def _check_alike(decisions: list[Decision], others: list[Decision], change: str) -> None:
    for here, there in zip(decisions, others, strict=False):
        if here != there:
            raise _Torn(
                f"{here.place} decides by data, `{here.line}`: {here.value} on the example and "
                f"{there.value} with {change}, so neither can stand for every batch. "
                'frontend="recorded" keeps the example\'s; a step that decides otherwise raises'
            )


def _wider(means: Means, path: str) -> Means | None:
    """The parent of a module that cannot be one op becomes one; None where that is the model."""
    return _with(means, [parent(path)]) if parent(path) else None


def _deciding(means: Means, path: str) -> Means:
    """Records what a module decides that holds the model's blocks: cuts stay possible inside."""
    owners = means.recorded.owners if means.recorded else frozenset()
    return replace(means, recorded=Recorded((owners or frozenset()) | {path}))


def _undecided(model: nn.Module, means: Means) -> Means | None:
    """Without recording what modules inside decide: they become one op each."""
    owners = means.recorded.owners if means.recorded else None
    inside = sorted((owners or frozenset()) - {""})
    return _with(means, [path for own in inside for path in alike(model, own)]) if inside else None


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
    outer = outermost((*means.opaque, *paths))
    if outer == means.opaque:
        return None
    recorded = means.recorded
    if recorded is not None and recorded.owners is not None:
        left = frozenset(p for p in recorded.owners if p not in outer)
        recorded = replace(recorded, owners=left) if left else None
    return replace(means, opaque=outer, recorded=recorded)
