"""One process a device, over torch.distributed's default process group."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from stagecut.ir.errors import PlanError, RuntimeFailure, StagecutError
from stagecut.ir.graph import Ref, WeightRef
from stagecut.ir.program import PipelineProgram
from stagecut.ir.types import TensorType
from stagecut.runtime.channels import Channels
from stagecut.runtime.clocks import gather
from stagecut.runtime.entry import Arrival, Entry, enter
from stagecut.runtime.failure import Notice
from stagecut.runtime.layout import Layout
from stagecut.runtime.recording import Recorded, Recorder
from stagecut.runtime.routes import routes_of
from stagecut.runtime.sums import copy_from_the_first, holders, sum_gradients
from stagecut.runtime.worker import Outcome, Step, Worker, stage_runners


class DistributedRuntime:
    """The stages of this rank, and its connections to the others.

    Built on every rank at the same time: it makes process groups.
    """

    def __init__(
        self,
        program: PipelineProgram,
        tensors: Mapping[str, torch.Tensor],
        layout: Layout,
        place: torch.device,
    ) -> None:
        self.program = program
        self.rank = dist.get_rank()
        self.layout = layout
        self.place = place
        self.replica, device = layout.replica(self.rank), layout.device(self.rank)
        mine = [s for s, owner in enumerate(layout.device_of_stage) if owner == device]
        self.runners = stage_runners(program, tensors, mine)
        stages = range(len(program.stages))
        up, down = dist.new_group(), dist.new_group()
        ranks = tuple(layout.rank(stage, self.replica) for stage in stages)
        self.channels = Channels(self.rank, ranks, up, down)
        everywhere = [[layout.rank(s, r) for r in range(layout.replicas)] for s in stages]
        self.shared = [h for h in holders(program, everywhere) if self.rank in h.ranks]
        pipelines = [dist.new_group(layout.pipeline(r)) for r in range(layout.replicas)]
        self.pipeline, self.everyone = pipelines[self.replica], dist.new_group()
        # Over gloo whatever carries the tensors, so that no GPU is waited for.
        self.control = {True: dist.new_group(backend="gloo")}
        meetings = [dist.new_group(layout.pipeline(r), backend="gloo")
                    for r in range(layout.replicas) if layout.replicas > 1]  # fmt: skip
        self.control[False] = meetings[self.replica] if meetings else self.control[True]
        self.failed = False
        for held in self.shared:
            copy_from_the_first(held, self._weights(held.names))
        self.notice = Notice(_store())
        self.recorder = Recorder(place)
        self.worker = Worker(
            device, routes_of(program), self.runners, self.channels, place, self.recorder
        )

    def enter(self, arrival: Arrival) -> Entry:
        """Meets the other ranks: all of them to train, its replica's for inference.

        Raises:
            ArgumentError: on every rank, where one has a problem or they come to different steps.
            RuntimeFailure: a rank is gone, or an earlier step failed.
        """
        if self.failed:
            raise RuntimeFailure(
                "an earlier step of this pipeline failed, which closed its connections; make a "
                "new one: stagecut.pipeline(plan, model, ...)"
            )
        mine = self.layout.pipeline(self.replica)
        ranks = range(self.layout.n_ranks) if arrival.training else mine
        try:
            replicas = [self.layout.replica(rank) for rank in ranks]
            return enter(arrival, self.control[arrival.training], replicas)
        except StagecutError:
            raise
        except Exception as error:
            self._close()
            raise self.notice.resolve(self.rank, error) from error

    def run(self, step: Step) -> Outcome:
        """Executes this rank's part of a step; the outcome is the same on every rank.

        Raises:
            RuntimeFailure: a stage failed on some rank; raised on every rank, with the first
                failure's stage, micro-batch and user's line.
        """
        outcome = Outcome()
        for runner in self.runners.values():
            runner.flying.clear()
        earlier = self._set_aside() if step.training else []
        try:
            for _ in self.worker.run(step, outcome):
                raise RuntimeFailure("a wait returned without its message")
            self.channels.flush()
            if step.training:
                self._sum_shared_gradients()
            return self._publish(step, outcome)
        except Exception as error:
            self._close()
            raise self.notice.resolve(self.rank, error) from error
        finally:
            _add_back(earlier)

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over all ranks, on every one."""
        summed = tensor.to(self.place, copy=True)
        dist.all_reduce(summed, group=self.everyone)
        return summed

    def recorded(self) -> tuple[Recorded, ...]:
        """What each device of this rank's pipeline did in the last step, and when.

        Called on every rank at once.
        """
        return gather(self.recorder.read(), self.pipeline)

    def _close(self) -> None:
        """Closes every connection, which ends the waits of all peers at once."""
        self.failed = True
        self.channels.close()
        shared = (held.group for held in self.shared)
        for group in {*shared, self.pipeline, self.everyone, *self.control.values()}:
            dist.destroy_process_group(group)

    def _set_aside(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The shared weights' gradients of earlier steps, which are summed over ranks already."""
        kept = []
        for held in self.shared:
            for weight in self._weights(held.names):
                if weight.grad is not None:
                    kept.append((weight, weight.grad))
                    weight.grad = None
        return kept

    def _sum_shared_gradients(self) -> None:
        for held in self.shared:
            start = self.recorder.mark()
            sum_gradients(held, self._weights(held.names))
            self.recorder.sums.append((held.stages, start, self.recorder.mark()))

    def _weights(self, names: Sequence[str]) -> list[torch.Tensor]:
        runners = self.runners.values()
        held = {weight.name: runner for runner in runners for weight in runner.program.weights}
        return [held[name].weight(name) for name in names]

    def _publish(self, step: Step, outcome: Outcome) -> Outcome:
        """Gives every rank the loss, or its replica's outputs, that the last stage's rank has."""
        if step.training:
            loss = torch.zeros((), dtype=torch.float64)
            if outcome.losses:
                loss = torch.stack([x.double().cpu() for x in outcome.losses]).sum()
            return Outcome([self.total(loss)])
        last = self.layout.rank(len(self.program.stages) - 1, self.replica)
        outputs = {}
        for microbatch in step.microbatches:
            here = outcome.outputs.get(microbatch.index)
            outputs[microbatch.index] = [
                self._publish_leaf(arg, None if here is None else here[i], microbatch.symbols, last)
                for i, arg in enumerate(self.program.outputs)
            ]
        return Outcome([], outputs)

    def _publish_leaf(self, arg: Any, leaf: Any, symbols: Mapping[str, int], last: int) -> Any:
        if not isinstance(arg, Ref | WeightRef):
            return arg
        kind = self._output_type(arg)
        if not isinstance(kind, TensorType):
            box = [leaf]
            dist.broadcast_object_list(box, src=last, group=self.pipeline)
            return box[0]
        if leaf is None:
            dtype = getattr(torch, kind.dtype)
            leaf = torch.empty(kind.sizes(symbols), dtype=dtype, device=self.place)
        leaf = leaf.detach().contiguous()
        dist.broadcast(leaf, src=last, group=self.pipeline)
        return leaf

    def _output_type(self, arg: Ref | WeightRef) -> Any:
        if isinstance(arg, Ref):
            return next(p.type for p in self.program.output_ports if p.name == arg.name)
        weights = (w for stage in self.program.stages for w in stage.weights)
        return next(w.type for w in weights if w.name == arg.name)


def _add_back(earlier: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for weight, gradient in earlier:
        weight.grad = gradient if weight.grad is None else gradient.add_(weight.grad)


def check_world(layout: Layout) -> None:
    """Raises unless there is one rank for each device of the plan.

    Raises:
        PlanError: with both numbers and the command to use.
    """
    devices, world = layout.n_ranks, dist.get_world_size()
    if devices != world:
        raise PlanError(
            f"the plan is for {devices} devices and {world} ranks are running; launch it with "
            f"torchrun --nproc-per-node {devices}, or plan for {world}"
        )


def _store() -> TCPStore:
    """A small store of our own, for the notice of a failure."""
    box: list[Any] = [None]
    if dist.get_rank() == 0:
        host = os.environ.get("MASTER_ADDR") or socket.gethostname()
        server = TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)
        box = [(host, server.port)]
        dist.broadcast_object_list(box, src=0)
        return server
    dist.broadcast_object_list(box, src=0)
    host, port = box[0]
    return TCPStore(host, port, is_master=False, wait_for_workers=False)
