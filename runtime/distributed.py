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
from stagecut.runtime.failure import Notice
from stagecut.runtime.worker import Outcome, Step, Worker, stage_runners


class DistributedRuntime:
    """The stages of this rank, and its connections to the others.

    Built on every rank at the same time: it makes process groups.
    """

    def __init__(
        self,
        program: PipelineProgram,
        tensors: Mapping[str, torch.Tensor],
        device_of_stage: Sequence[int],
        place: torch.device,
    ) -> None:
        self.program = program
        self.rank = dist.get_rank()
        self.place = place
        self.device_of_stage = tuple(device_of_stage)
        mine = [s for s, device in enumerate(device_of_stage) if device == self.rank]
        self.runners = stage_runners(program, tensors, mine)
        up, down = dist.new_group(), dist.new_group()
        self.channels = Channels(self.rank, self.device_of_stage, up, down)
        self.shared = _shared_weights(program, self.device_of_stage)
        self._take_shared_weights()
        self.notice = Notice(_store())
        self.worker = Worker(self.rank, program, self.runners, self.channels, place)

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
            self.channels.close()
            raise self.notice.resolve(self.rank, error) from error

    def _take_shared_weights(self) -> None:
        """Every holder starts from the first one's values, whatever each rank's model had."""
        with torch.no_grad():
            for name, (ranks, group) in self.shared.items():
                if self.rank in ranks:
                    dist.broadcast(self._weight(name).data, src=ranks[0], group=group)

    def _sum_shared_gradients(self) -> None:
        for name, (ranks, group) in self.shared.items():
            weight = self._weight(name) if self.rank in ranks else None
            if weight is not None and weight.requires_grad:
                if weight.grad is None:
                    weight.grad = torch.zeros_like(weight)
                dist.all_reduce(weight.grad, group=group)

    def _weight(self, name: str) -> torch.Tensor:
        runners = self.runners.values()
        return next(r for r in runners if name in {w.name for w in r.program.weights}).weight(name)

    def _publish(self, step: Step, outcome: Outcome) -> Outcome:
        """Gives every rank the loss, or the outputs, that the last stage's rank has."""
        last = self.device_of_stage[-1]
        if step.training:
            total = torch.zeros((), dtype=torch.float64)
            if self.rank == last:
                total = torch.stack([x.double().cpu() for x in outcome.losses]).sum()
            total = total.to(self.place)
            dist.broadcast(total, src=last)
            return Outcome([total])
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
            dist.broadcast_object_list(box, src=last)
            return box[0]
        if leaf is None:
            dtype = getattr(torch, kind.dtype)
            leaf = torch.empty(kind.sizes(symbols), dtype=dtype, device=self.place)
        leaf = leaf.detach().contiguous()
        dist.broadcast(leaf, src=last)
        return leaf

    def _output_type(self, arg: Ref | WeightRef) -> Any:
        if isinstance(arg, Ref):
            return next(p.type for p in self.program.output_ports if p.name == arg.name)
        weights = (w for stage in self.program.stages for w in stage.weights)
        return next(w.type for w in weights if w.name == arg.name)


def check_world(device_of_stage: Sequence[int]) -> None:
    """Raises unless there is one rank for each device of the plan.

    Raises:
        PlanError: with both numbers and the command to use.
    """
    devices, world = max(device_of_stage) + 1, dist.get_world_size()
    if devices != world:
        raise PlanError(
            f"the plan is for {devices} devices and {world} ranks are running; launch it with "
            f"torchrun --nproc-per-node {devices}, or plan for {world}"
        )


def _shared_weights(
    program: PipelineProgram, device_of_stage: Sequence[int]
) -> dict[str, tuple[list[int], dist.ProcessGroup | None]]:
    """Weights that stages on several ranks hold, with a group of those ranks."""
    holders: dict[str, set[int]] = {}
    for stage in program.stages:
        for weight in stage.weights:
            holders.setdefault(weight.name, set()).add(device_of_stage[stage.index])
    groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
    shared = {}
    for name, ranks in holders.items():
        if len(ranks) > 1:
            key = tuple(sorted(ranks))
            if key not in groups:
                groups[key] = dist.new_group(list(key))
            shared[name] = (list(key), groups[key])
    return shared


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
