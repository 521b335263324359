"""A stage's memory from op to op, forward and backward, of one micro-batch.

    forward     received ─┐                 backward   returned gradients ─┐
                          ├─ ops ─> kept               kept ───────────────┼─ ops in reverse
                results ──┘                            gradients <─────────┘

Between its forward and its backward a micro-batch keeps what autograd saved, what it received and
what it sent (both are needed to hand gradients over). A storage is freed behind its last use in
the forward if it is not kept, and behind the backward of the first op that saved it. The user's
batch belongs to the user and is not counted. A recomputed region keeps its inputs instead of what
its ops save; where the backward first needs one of its tensors, it runs again and then has them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stagecut.ir.graph import Op, Value, op_refs
from stagecut.ir.types import TensorType
from stagecut.passes.parts import Part
from stagecut.passes.regions import is_size, regions
from stagecut.passes.replay import Replay, replay, saved_in

_OUTSIDE = ""
"""The owner of storages that a stage does not pay for: weights, buffers and model inputs."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Bytes of one micro-batch in one stage; peaks are above what was held when it began."""

    kept: int
    """From the end of the forward to the end of the backward."""
    boundary: int
    """Gradients received and sent."""
    forward_peak: int
    first_backward_peak: int
    """While the weights' gradients come into being; `kept` is held and not counted."""
    first_backward_gradients: int
    """Weights' gradients that exist at that peak."""
    later_backward_peak: int
    """Where the weights have gradients already; `kept` is held and not counted."""


def stage_profile(part: Part) -> Profile:
    """The profile of one stage in training."""
    stage = _Stage.of(part)
    first, later = _Backward(stage, True), _Backward(stage, False)
    first.run()
    later.run()
    return Profile(
        kept=sum(stage.kept.values()),
        boundary=stage.boundary_bytes(),
        forward_peak=_forward_peak(stage),
        first_backward_peak=first.peak,
        first_backward_gradients=first.gradients_at_peak,
        later_backward_peak=later.peak,
    )


@dataclass(frozen=True, slots=True)
class _Stage:
    ops: tuple[Op, ...]
    values: Mapping[str, Value]
    """Every tensor value of the graph."""
    received: tuple[str, ...]
    results: tuple[str, ...]
    """Values that others read, and the model's outputs on the last stage."""
    roots: dict[str, str]
    """For each value here, the value that owns its storage here, or _OUTSIDE."""
    kept: dict[str, int]
    """Bytes of each storage that lives from the forward to the backward."""
    freed_after: tuple[int, ...]
    """For each op the saved bytes that nobody needs once its backward is done."""
    trained: dict[str, int]
    """Bytes of the gradient of each weight that trains."""
    outputs: frozenset[str]
    """The values among the model's outputs."""
    losses: frozenset[str]
    """Outputs that the backward starts from."""
    replays: dict[int, Replay]
    """For each op of a recomputed region that saves something, by position, the region's."""

    @staticmethod
    def of(part: Part) -> _Stage:
        ops, values, received, results = part.ops, part.values, part.received, part.results
        roots = _roots(part)
        sizes, savers = _saved(ops, roots, values)
        for name in set(received) & sizes.keys():  # sent without the rest of its storage
            sizes[name] = values[name].type.hint_bytes  # type: ignore[union-attr]
        held = [n for n in (*received, *results) if values[n].requires_grad]
        for name in held:
            if roots.get(name, name) != _OUTSIDE:
                sizes.setdefault(roots.get(name, name), values[name].type.hint_bytes)  # type: ignore[union-attr]
        held_roots = {roots.get(name, name) for name in (*received, *results)}
        freed = [0] * len(ops)
        for root, saver in savers.items():
            freed[saver] += 0 if root in held_roots else sizes[root]
        trained = {w.name: w.type.hint_bytes for w in part.weights if w.trainable}
        return _Stage(
            ops, values, received, results, roots, sizes, tuple(freed), trained, part.outputs,
            _losses(results, values, part.outputs), _replays(ops, roots),
        )  # fmt: skip

    def root(self, name: str) -> str:
        """The owner of a value's storage in this stage."""
        return self.roots.get(name, name)

    def n_bytes(self, name: str) -> int:
        """Bytes of a value that fills a storage."""
        type_ = self.values[name].type
        return type_.hint_bytes if isinstance(type_, TensorType) else 0

    def boundary_bytes(self) -> int:
        """Gradients of one micro-batch that arrive and that are sent back."""
        names = [n for n in self.results if n not in self.outputs or n in self.losses]
        return sum(
            self.n_bytes(n) for n in (*self.received, *names) if self.values[n].requires_grad
        )


def _forward_peak(stage: _Stage) -> int:
    last: dict[str, int] = {}
    for index, op in enumerate(stage.ops):
        for name in _tensors(op, stage.values):
            last[stage.root(name)] = index
    for name in stage.results:
        last[stage.root(name)] = len(stage.ops)
    ends: dict[int, list[str]] = defaultdict(list)
    for root, index in last.items():
        if root not in stage.kept:
            ends[index].append(root)
    alive = {stage.root(name): stage.n_bytes(name) for name in stage.received}
    total = peak = sum(alive.values())
    for index, op in enumerate(stage.ops):
        for value in op.results:
            if value.name in stage.values and stage.root(value.name) == value.name:
                alive[value.name] = stage.n_bytes(value.name)
                total += alive[value.name]
        internals = _internals(op)
        total += sum(stage.kept.get(name, 0) for name in internals)
        passing = sum(n for name, n in internals.items() if name not in stage.kept)
        peak = max(peak, total + passing + _forward_workspace(op))
        total -= sum(alive.pop(root, 0) for root in ends[index])
    return peak


def _forward_workspace(op: Op) -> int:
    """An op's temporaries forward: where it has a backward, those are the backward's."""
    return op.cost.workspace_bytes if op.cost and not op.cost.backward.kernels else 0


@dataclass(slots=True)
class _Backward:
    """One backward: which gradients are alive, and how much of what was kept is free again."""

    stage: _Stage
    first: bool
    storages: dict[int, int] = field(default_factory=dict)
    """Bytes of each gradient's storage, by number."""
    gradients: dict[str, int] = field(default_factory=dict)
    """For each value that has a gradient, its storage."""
    permanent: set[int] = field(default_factory=set)
    """Storages that stay until the end: gradients received, and those to be sent back."""
    freed: int = 0
    replayed: list[Replay] = field(default_factory=list)
    """Of the regions that have run again."""
    weights: int = 0
    """Bytes of the weights' gradients so far."""
    peak: int = 0
    gradients_at_peak: int = 0

    def run(self) -> None:
        """Goes through the stage's ops in reverse."""
        for name in self.stage.results:
            wanted = name in self.stage.losses or name not in self.stage.outputs
            if wanted and self.stage.values[name].requires_grad:
                self.permanent.add(self._new(name))
        self._measure(0)
        for index in reversed(range(len(self.stage.ops))):
            op = self.stage.ops[index]
            if any(value.name in self.gradients for value in op.results):
                self._replay(index)
                self._op(op)
            self.freed += self.stage.freed_after[index]
            self.freed += sum(replay.freed_after.get(index, 0) for replay in self.replayed[-1:])

    def _replay(self, index: int) -> None:
        """Runs the op's region again, if it has one and did not run yet."""
        again = self.stage.replays.get(index)
        if again is not None and again not in self.replayed[-1:]:
            self._measure(again.peak)
            self.freed -= again.kept
            self.replayed.append(again)

    def _op(self, op: Op) -> None:
        cost = op.cost
        self._measure(cost.workspace_bytes if cost else 0)
        source = next(self.gradients[v.name] for v in op.results if v.name in self.gradients)
        passes_on = cost is not None and cost.backward.kernels == 0
        for name in dict.fromkeys(_tensors(op, self.stage.values, results=False)):
            if self.stage.values[name].requires_grad:
                self._give(name, source if passes_on else None)
        if self.first:
            self.weights += _weight_gradients(op, self.stage.trained)
        for value in op.results:
            self.gradients.pop(value.name, None)
        used = {*self.gradients.values(), *self.permanent}
        self.storages = {s: n for s, n in self.storages.items() if s in used}
        self._measure(0)

    def _give(self, name: str, storage: int | None) -> None:
        """A gradient for a value: a storage of its own, or the one that is passed on."""
        if name in self.gradients:
            return  # summed in place
        if storage is None:
            storage = self._new(name)
        self.gradients[name] = storage
        if name in self.stage.received:
            self.permanent.add(storage)

    def _new(self, name: str) -> int:
        number = max(self.storages, default=0) + 1
        self.storages[number] = self.stage.n_bytes(name)
        self.gradients[name] = number
        return number

    def _measure(self, workspace: int) -> None:
        alive = sum(self.storages.values()) + self.weights - self.freed + workspace
        if alive > self.peak:
            self.peak, self.gradients_at_peak = alive, self.weights


def _tensors(op: Op, values: Mapping[str, Value], results: bool = True) -> list[str]:
    """The tensor values an op reads, and makes."""
    if is_size(op):
        return []
    read = [ref.name for ref in op_refs(op) if ref.name in values]
    return read + [v.name for v in op.results if results and v.name in values]


def _losses(
    results: Sequence[str], values: Mapping[str, Value], outputs: frozenset[str]
) -> frozenset[str]:
    """The scalar outputs where there are any: the model's own loss; else every output."""
    mine = [n for n in results if n in outputs and values[n].requires_grad]
    scalars = [n for n in mine if values[n].type.hint_shape == ()]  # type: ignore[union-attr]
    return frozenset(scalars or mine)


def _roots(part: Part) -> dict[str, str]:
    roots = dict.fromkeys(part.outside, _OUTSIDE) | {name: name for name in part.received}
    for op in part.ops:
        given = op_refs(op)
        for value, share in zip(op.results, op.cost.shares if op.cost else (), strict=False):
            roots[value.name] = roots[given[share].name] if share >= 0 else value.name
    return roots


def _saved(
    ops: Sequence[Op], roots: dict[str, str], values: Mapping[str, Value]
) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of each storage saved in the forward, and the first op that saved it."""
    found = regions(ops)
    inside = {index for region in found for index in region.ops}
    sizes, savers = saved_in(ops, [i for i in range(len(ops)) if i not in inside], roots)
    for region in found:
        for name in region.inputs if region.replayed else ():
            root = roots.get(name, name)
            if root in values:
                type_ = values[root].type
                sizes.setdefault(root, type_.hint_bytes)  # type: ignore[union-attr]
                savers[root] = min(savers.get(root, len(ops)), region.ops[0])
    sizes.pop(_OUTSIDE, None)
    savers.pop(_OUTSIDE, None)
    return sizes, savers


def _replays(ops: Sequence[Op], roots: dict[str, str]) -> dict[int, Replay]:
    found: dict[int, Replay] = {}
    for region in regions(ops):
        again = replay(ops, region, roots)
        saving = [i for i in region.replayed if (cost := ops[i].cost) and cost.saved]
        found.update(dict.fromkeys(saving, again))
    return found


def _internals(op: Op) -> dict[str, int]:
    """Storages that only the op's backward knows, with their bytes."""
    saved = op.cost.saved if op.cost else ()
    return {f"{op.name}#{s.index}": s.n_bytes for s in saved if s.kind == "internal"}


def _weight_gradients(op: Op, trained: dict[str, int]) -> int:
    names = {ref.name for ref in op_refs(op)}
    if op.cost is None or not op.cost.backward_weight.kernels:
        return 0
    return sum(trained.get(name, 0) for name in names)
