"""A plan as data: the graph, where every op goes, on what, in which schedule, and what it costs.

The methods a user calls on a plan live in the face; this value crosses process and file borders.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from stagecut.ir.data import from_data, to_data
from stagecut.ir.device import Cluster
from stagecut.ir.errors import PlanError
from stagecut.ir.graph import Graph
from stagecut.ir.solution import Trial
from stagecut.ir.text import parse_graph, print_graph

FORMAT = 2
"""Raised whenever a plan's JSON changes so that older readers would misread it."""
_ADDED: Mapping[str, Any] = MappingProxyType({"pins": [], "tied": "replicate"})
"""Fields that plans of this format were first written without, and what they then are."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One value on its way between two stages, for one micro-batch."""

    value: str
    source: int
    destination: int
    n_bytes: float
    """Of the activation."""
    gradient_bytes: float
    """Of the gradient that comes back; 0 where none does."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """A stage's peak, term by term, in bytes."""

    weights: float
    gradients: float
    optimizer: float
    saved_per_microbatch: float
    in_flight: int
    """Micro-batches whose saved tensors are held at the peak."""
    boundary: float
    """Receive and send buffers of one micro-batch each way."""
    workspace: float
    limit: float
    """What tensors may take: as the user said, at most what the margin leaves of the device."""
    margin: float = 0.0
    """Of the device's memory, left to its allocator, libraries and context."""

    @property
    def saved(self) -> float:
        """Saved activations of every micro-batch in flight."""
        return self.saved_per_microbatch * self.in_flight

    @property
    def total(self) -> float:
        """All terms together."""
        fixed = self.weights + self.gradients + self.optimizer
        return fixed + self.saved + self.boundary + self.workspace

    @property
    def fits(self) -> bool:
        """Whether the total is within the limit."""
        return self.total <= self.limit


@dataclass(frozen=True, slots=True)
class StageReport:
    """What one stage holds and costs; seconds and bytes are of one micro-batch."""

    index: int
    device: str
    rank: int
    modules: tuple[str, ...]
    """The module paths it runs, in program order, runs of siblings shortened: `h.0 … h.2`."""
    ops: tuple[str, ...]
    """Names of its ops."""
    forward_seconds: float
    backward_seconds: float
    send_seconds: float
    receive_seconds: float
    sync_seconds: float
    optimizer_seconds: float
    """The optimizer's step, once for all micro-batches."""
    flops_forward: float
    flops_backward: float
    memory: StageMemory
    sends: tuple[Transfer, ...]
    receives: tuple[Transfer, ...]

    @property
    def seconds(self) -> float:
        """The stage's load: computing, sending, receiving and gradient sums of shared weights."""
        transfers = self.send_seconds + self.receive_seconds + self.sync_seconds
        return self.forward_seconds + self.backward_seconds + transfers


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to run a step that the search weighed."""

    schedule: str
    replicas: int
    n_stages: int
    """Of each replica."""
    n_microbatches: int
    """Of each replica."""
    rows: int
    """Of one micro-batch."""
    recompute: bool
    """Whether stages recompute some of their blocks in the backward."""
    step_seconds: float
    """Simulated; what it takes at least where the note says so, infinity where it cannot run."""
    memory_bytes: float
    """Of the fullest device; 0 where it was not worked out."""
    bubble: float
    note: str
    """Why it was taken, or was not."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that the trace made out of the model's code: a literal, a plain attribute."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: str
    """Its bytes in row-major order, as base64; empty where the trace ran on the meta device."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that follows from `partition`."""

    graph: Graph
    stages_of_ops: tuple[tuple[int, ...], ...]
    """For each op, the stages that run it: one, or several where a cheap op is replicated."""
    stages: tuple[StageReport, ...]
    cluster: Cluster
    device_of_stage: tuple[int, ...]
    """Shape [k]: the rank that owns each stage."""
    schedule: str
    """A name, or the text of the user's own: a line a device, under a first line `# name`."""
    n_microbatches: int
    optimizer: str
    method: str
    trials: tuple[Trial, ...]
    bottleneck_seconds: float
    """The largest stage load; under the schedule `folded`, the largest of a device's stages."""
    lower_bound_seconds: float
    optimal: bool
    stopped_by_clock: bool
    step_seconds: float
    bubble: float
    """Idle share of the devices in a step, from the simulated schedule."""
    frontend: str
    """Which frontend traced the model, and why."""
    torch_version: str
    constants: tuple[Constant, ...] = ()
    """The values of the graph's weights of kind `constant`."""
    step_timings: tuple[tuple[str, float], ...] = ()
    """Measured seconds of the optimizer's step of single weights, by name; others by roofline."""
    replicas: int = 1
    """Copies of the pipeline, each on a share of the batch; the cluster has the devices of all."""
    alternatives: tuple[Alternative, ...] = ()
    """What the search weighed, the best first; empty where nothing was left to it."""
    notes: tuple[str, ...] = ()
    """What the user should know, one sentence each."""
    pins: tuple[tuple[str, int], ...] = ()
    """Module paths and the stages that the user wants them in; an edit keeps them."""
    tied: str = "replicate"
    """`colocate` where all users of a tied weight are to be in one stage."""

    @property
    def schedule_name(self) -> str:
        """What to call the schedule."""
        return self.schedule.partition("\n")[0].removeprefix("# ")

    @property
    def n_stages(self) -> int:
        """k."""
        return len(self.stages)

    @property
    def gap(self) -> float:
        """bottleneck / lower bound - 1."""
        bound, achieved = self.lower_bound_seconds, self.bottleneck_seconds
        if achieved <= bound:
            return 0.0
        return achieved / bound - 1 if bound > 0 else float("inf")

    @property
    def fingerprint(self) -> str:
        """Of the traced program without its costs: equal for the same model and example."""
        bare = replace(self.graph, ops=tuple(replace(op, cost=None) for op in self.graph.ops))
        return hashlib.sha256(print_graph(bare).encode()).hexdigest()[:16]


def dump_plan(plan: Plan) -> str:
    """The plan as JSON; `load_plan` is its inverse."""
    data = to_data(replace(plan, graph=Graph("", (), (), (), ())))
    data["graph"] = print_graph(plan.graph)
    return json.dumps({"stagecut": FORMAT, "fingerprint": plan.fingerprint, "plan": data}, indent=1)


def load_plan(text: str) -> Plan:
    """The plan that `dump_plan` wrote.

    Raises:
        PlanError: the text is not a plan, is of another format, or was changed by hand in a way
            that no longer matches its fingerprint.
    """
    document = _document(text)
    data = {**_ADDED, **document["plan"]}
    graph = parse_graph(data["graph"])
    plan = from_data(Plan, {**data, "graph": to_data(Graph("", (), (), (), ()))})
    plan = replace(plan, graph=graph)
    if plan.fingerprint != document.get("fingerprint"):
        raise PlanError(
            f"the plan's graph was changed after it was saved (fingerprint {plan.fingerprint}, "
            f"recorded {document.get('fingerprint')}); make the plan again with partition()"
        )
    return plan


def _document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise PlanError(f"this is not a plan: not JSON ({error})") from error
    if not isinstance(document, dict) or "plan" not in document:
        raise PlanError("this is not a plan: no 'plan' in it; write one with plan.save(path)")
    if document.get("stagecut") != FORMAT:
        raise PlanError(
            f"this plan has format {document.get('stagecut')}, this version reads {FORMAT}; "
            "make it again with partition()"
        )
    return document
