"""One process a device, over torch.distributed's default process group."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from stagecut.ir.errors import PlanError, RuntimeFailure
from stagecut.ir.graph import Ref, WeightRef
from stagecut.ir.program import PipelineProgram
from stagecut.ir.types import TensorType
from stagecut.runtime.channels import Channels
from stagecut.runtime.clocks import gather
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
        for held in self.shared:
            copy_from_the_first(held, self._weights(held.names))
        self.notice = Notice(_store())
        self.recorder = Recorder(place)
        self.worker = Worker(
            device, routes_of(program), self.runners, self.channels, place, self.recorder
        )

    def run(self, step: Step) -> Outcome:
        """Executes this rank's part of a step; the outcome is the same on every rank.

        Raises:
            RuntimeFailure: a stage failed on some rank; raised on every rank, with the first
                failure's stage, micro-batch and user's line.
        """
        outcome = Outcome()
        for runner in self.runners.values():
            runner.flying.clear()
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

    def rows(self, rows: int) -> int:
        """The rows of a step over all replicas, from those of this one."""
        if self.layout.replicas == 1:
            return rows
        counted = rows if self.worker.device == 0 else 0
        return int(self.total(torch.tensor(counted, dtype=torch.int64)))

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over all ranks, on every one."""
        summed = tensor.to(self.place, copy=True)
        dist.all_reduce(summed, group=self.everyone)
        return summed

    def agreed(self, number: int) -> int:
        """The first rank's number, on every one."""
        box = torch.tensor(number, dtype=torch.int64, device=self.place)
        dist.broadcast(box, src=0, group=self.everyone)
        return int(box)

    def recorded(self) -> tuple[Recorded, ...]:
        """What each device of this rank's pipeline did in the last step, and when.

        Called on every rank at once.
        """
        return gather(self.recorder.read(), self.pipeline)

    def _close(self) -> None:
        """Closes every connection, which ends the waits of all peers at once."""
        self.channels.close()
        for group in (*(held.group for held in self.shared), self.pipeline, self.everyone):
            dist.destroy_process_group(group)

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
