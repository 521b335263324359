"""The pipeline a user trains and serves with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import nn

from stagecut.inputs import Signature
from stagecut.ir import plan as ir
from stagecut.ir.errors import ArgumentError, PlanError, StagecutError, UnsupportedError
from stagecut.ir.expression import symbols_of
from stagecut.ir.graph import Mode, Ref
from stagecut.ir.program import PipelineProgram
from stagecut.ir.schedule import ActionList, Phase
from stagecut.ir.timeline import Timeline
from stagecut.ir.types import SymbolicDim, TensorType
from stagecut.losses import check_call, checked_loss, own_loss
from stagecut.prediction import actions_of
from stagecut.runtime.entry import Arrival, Entry
from stagecut.runtime.microbatches import MicroBatch, count_rows, merge_outputs, split
from stagecut.runtime.norms import clip_gradients
from stagecut.runtime.recording import Recorded, timeline
from stagecut.runtime.stage import StageRunner
from stagecut.runtime.statistics import batch_norms, check_values
from stagecut.runtime.worker import Outcome, Step
from stagecut.timetables import ScheduleLike

LossFn = Callable[..., torch.Tensor]


class Runtime(Protocol):
    """Executes steps on the stages it has."""

    @property
    def runners(self) -> Mapping[int, StageRunner]:
        """The stages of this process."""

    def run(self, step: Step) -> Outcome:
        """Executes a step; the outcome is the same in every process."""

    @property
    def replica(self) -> int:
        """Which of the pipeline's copies this process is part of."""

    def enter(self, arrival: Arrival) -> Entry:
        """Meets the pipeline's other processes; raises in all where one cannot begin."""

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over all processes of the pipeline."""

    def recorded(self) -> Sequence[Recorded]:
        """What each device did in the last step, and when."""


class Pipeline:
    """The stages of this process, connected to those of the others.

    Parameters keep the names they have in the original model, and are its own Parameter objects.
    """

    def __init__(
        self,
        plan: ir.Plan,
        program: PipelineProgram,
        runtime: Runtime,
        loss_fn: LossFn | None,
        n_microbatches: int,
        schedule: ScheduleLike,
    ) -> None:
        self.plan = plan
        self.program = program
        self.runtime = runtime
        self.loss_fn = loss_fn
        self.n_microbatches = n_microbatches
        self.schedule = schedule
        self.signature = Signature(plan.graph)
        self._actions: dict[tuple[ScheduleLike, int], ActionList] = {}
        self._last: ActionList | None = None
        self._norms = batch_norms(plan.graph)
        self._random = any(op.effects.random for op in plan.graph.ops)
        self.train(plan.graph.training)

    def train_step(self, *args: Any, target: Any = None, **kwargs: Any) -> torch.Tensor:
        """One step over a whole batch: forward, loss, backward; gradients add up in `.grad`.

        Args:
            *args: The model's positional inputs, the whole batch; with replicas, this one's share.
            target: What the loss compares with; cut like the inputs. Of a model with an input of
                this name it is that input, unless that is given by position.
            **kwargs: The model's keyword inputs.

        Returns:
            The mean loss, micro-batches weighted by rows; the same on every rank. Shape [].

        Raises:
            ArgumentError: the inputs do not fit the plan.
            RuntimeFailure: a stage failed, on this rank or another.
        """
        if not self.plan.graph.training:
            raise ArgumentError(
                "this plan is for inference; plan with partition(..., training=True) to train"
            )
        if target is not None and self.signature.lacks("target", args):
            kwargs, target = {**kwargs, "target": target}, None
        microbatches, drawn = self._entered(args, kwargs, target, training=True)
        with _own_draws(drawn) as seed:
            actions = self._last = self._list(self.schedule, len(microbatches))
            outcome = self.runtime.run(
                Step(actions, microbatches, True, self._loss, seed, _halves(actions))
            )
        # Summed in double precision, as every runtime does, so that all give the same number.
        total = torch.stack([loss.double() for loss in outcome.losses]).sum()
        return total.to(torch.get_default_dtype())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output for a whole batch, in the model's own container, without gradients.

        Raises:
            ArgumentError: the inputs do not fit the plan.
            RuntimeFailure: a stage failed, on this rank or another.
        """
        microbatches, drawn = self._entered(args, kwargs, None, training=False)
        with _own_draws(drawn) as seed:
            actions = self._last = self._list("forward", len(microbatches))
            outcome = self.runtime.run(Step(actions, microbatches, False, None, seed))
        parts = [outcome.outputs[m.index] for m in microbatches]
        return self.signature.container(merge_outputs(parts, [m.share for m in microbatches]))

    def last_timeline(self) -> Timeline:
        """The last step as it ran: `plan.to_trace(path, measured=pipe.last_timeline())`.

        In a process group every rank calls it, and all get the same; with replicas, that of their
        own. Times are of the host's clock, on a GPU of its stream.

        Raises:
            ArgumentError: no step has run.
        """
        if self._last is None:
            raise ArgumentError("no step has run yet; call train_step, or the pipeline, first")
        return timeline(self._last, self.runtime.recorded())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters of this process's stages, each once, by their original names."""
        for name, tensor in self._held("parameter"):
            if isinstance(tensor, nn.Parameter):
                yield name, tensor

    def parameters(self) -> Iterator[nn.Parameter]:
        """What an optimizer of this process updates."""
        return (parameter for _, parameter in self.named_parameters())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The state of this process's stages: a subset of the original model's, or all of it."""
        held = {**dict(self._held("parameter")), **dict(self._held("buffer"))}
        return {
            name: held[weight.name].detach()
            for weight in self.plan.graph.weights
            if weight.name in held and weight.persistent
            for name in (weight.name, *weight.aliases)
        }

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copies values into this process's stages, from a state of them or of the whole model.

        Raises:
            PlanError: names are missing or unknown, or shapes differ; nothing is changed then.
        """
        mine = self.state_dict()
        known = {n for w in self.plan.graph.weights for n in (w.name, *w.aliases)}
        faults = [f"{name} is missing" for name in mine if name not in state]
        faults += [f"{name} is not in the model" for name in state if name not in known]
        faults += [
            f"{name} has shape {tuple(state[name].shape)}, not {tuple(tensor.shape)}"
            for name, tensor in mine.items()
            if name in state and state[name].shape != tensor.shape
        ]
        if faults:
            raise PlanError("the state does not fit:\n" + "\n".join(f"  {f}" for f in faults[:20]))
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(state[name])

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scales all gradients of the whole pipeline so that their 2-norm is at most `max_norm`.

        Returns:
            The norm before, the same on every rank. Shape [].
        """
        parameters = dict(self.named_parameters())
        return clip_gradients(parameters, self._owned(), max_norm, self.runtime.total)

    def train(self, mode: bool = True) -> Pipeline:
        """Switches the stages to training, or back.

        Raises:
            ArgumentError: the plan is for inference.
            UnsupportedError: train and eval mode of this model could not be one program.
        """
        if mode and not self.plan.graph.training:
            raise ArgumentError("this plan is for inference; plan with training=True to train")
        if not mode:
            _check_eval(self.plan)
        self.training = mode
        for runner in self.runtime.runners.values():
            runner.module.train(mode)
        return self

    def eval(self) -> Pipeline:
        """Switches the stages to inference; raises what `train` does."""
        return self.train(False) if self.plan.graph.training else self._eval()

    def _eval(self) -> Pipeline:
        self.training = False
        for runner in self.runtime.runners.values():
            runner.module.eval()
        return self

    def _held(self, kind: str) -> Iterator[tuple[str, torch.Tensor]]:
        for weight in self.plan.graph.weights:
            if weight.kind == kind:
                for runner in self.runtime.runners.values():
                    if weight in runner.program.weights:
                        yield weight.name, runner.weight(weight.name)
                        break

    def _owned(self) -> set[str]:
        """Names that this process counts in a sum over all: each weight is some process's."""
        if self.runtime.replica:
            return set()
        first: dict[str, int] = {}
        for stage in self.program.stages:
            for weight in stage.weights:
                first.setdefault(weight.name, stage.index)
        return {name for name, stage in first.items() if stage in self.runtime.runners}

    def _entered(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], target: Any, *, training: bool
    ) -> tuple[tuple[MicroBatch, ...], int | None]:
        """The micro-batches of a step that every process begins, and what it draws from.

        Where the inputs of one process do not fit, all raise and none has begun.
        """
        microbatches: tuple[MicroBatch, ...] = ()
        rows, problem = 0, None
        draws = self._random and (training or self.training)
        seed = int(torch.randint(2**31, ())) if draws else 0
        try:
            leaves = self.signature.leaves(args, kwargs)
            rows = count_rows(self.plan.graph, leaves)
            n = min(self.n_microbatches, rows)
            if training:
                check_call(self.loss_fn, target)
            elif n > 1:
                _refuse_mixed_rows(self.plan)
            microbatches = split(self.plan.graph, leaves, target, n)
            check_values(self._norms, microbatches, training=self.training)
        except Exception as error:
            problem = error
        try:
            told = None if problem is None else f"{type(problem).__name__}: {problem}"
            entry = self.runtime.enter(Arrival(rows, training, seed, told))
        except StagecutError:
            if problem is None:
                raise
        if problem is not None:
            raise problem
        shared = [replace(m, share=round(m.share * rows) / entry.rows) for m in microbatches]
        own = entry.seed * self.plan.replicas + self.runtime.replica
        return tuple(shared), own if draws else None

    def _list(self, schedule: ScheduleLike, n_microbatches: int) -> ActionList:
        key = schedule, n_microbatches
        if key not in self._actions:
            edges = self.program.edges
            actions = actions_of(self.plan, edges, n_microbatches, schedule)
            self._actions[key] = actions
        return self._actions[key]

    def _loss(self, leaves: Sequence[Any], target: Any) -> torch.Tensor:
        output = self.signature.container(leaves)
        if self.loss_fn is None:
            return own_loss(output)
        loss = self.loss_fn(output) if target is None else self.loss_fn(output, target)
        return checked_loss(loss, leaves)


def _check_eval(plan: ir.Plan) -> None:
    for op in plan.graph.ops:
        if op.target == "stagecut.refuse" and Mode(False) in op.context:
            raise UnsupportedError(str(op.args[0]))


def _refuse_mixed_rows(plan: ir.Plan) -> None:
    """An output of rows x rows cannot be put together from micro-batches."""
    split = [item.value for item in plan.graph.inputs if item.split_dim is not None]
    rows = {
        symbol
        for value in split
        if value is not None and isinstance(value.type, TensorType)
        for dim in value.type.shape[:1]
        if isinstance(dim, SymbolicDim)
        for symbol in symbols_of(dim.expression)
    }
    types = {value.name: value.type for op in plan.graph.ops for value in op.results}
    for output in plan.graph.outputs:
        kind = types.get(output.name) if isinstance(output, Ref) else None
        inner = kind.shape[1:] if isinstance(kind, TensorType) else ()
        if any(isinstance(d, SymbolicDim) and symbols_of(d.expression) & rows for d in inner):
            raise ArgumentError(
                f"the output {kind} mixes the rows of the batch, so micro-batches cannot be put "
                "together; use pipeline(..., n_microbatches=1)"
            )


@contextlib.contextmanager
def _own_draws(seed: int | None) -> Iterator[int | None]:
    """Leaves the user's generator as it is, whatever a step draws from its own seed."""
    state = None if seed is None else torch.get_rng_state()
    try:
        yield seed
    finally:
        if state is not None:
            torch.set_rng_state(state)


def _halves(actions: ActionList) -> frozenset[tuple[int, int]]:
    """(stage, micro-batch) of the backwards that come in two halves."""
    rows = actions.schedule.devices
    return frozenset(
        (compute.stage, compute.microbatch)
        for row in rows
        for compute in row
        if compute.phase is Phase.BACKWARD_INPUT
    )
