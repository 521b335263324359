"""Runs one op on fake tensors, forward and backward, and notes what autograd and the kernels do.

    activations ─┐                   ┌─> results     which require grad, whose storage they are in
                 ├─> the op's kernels┤
        weights ─┘      │            └─> saved       argument i, result j, or internal, by storage
                        └─> work, temporaries

An op is probed once for each distinct `Call`, however many layers repeat it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks
from torch.func import functional_call

from stagecut.ir.cost import Saved, Work
from stagecut.ir.device import Device
from stagecut.ir.graph import Arg, Autocast, Context, GradMode, refs
from stagecut.passes.counter import KernelCounter
from stagecut.passes.fake import fake_activation, fake_leaf, storage_bytes, storage_key
from stagecut.passes.layout import Layout
from stagecut.passes.resolve import function_of, torch_value
from stagecut.passes.substitutes import substitute

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Call:
    """All that an op's cost depends on; its references are slots: `Ref("0")`, `Ref("1")`."""

    target: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    slots: tuple[Layout | int | float | bool, ...]
    """What each slot holds: a tensor, or a number the graph computes."""
    context: tuple[Context, ...]
    sequence: bool
    training: bool
    state: tuple[tuple[str, int], ...] = ()
    """For an opaque module: its own weights, by their names inside it, and their slots."""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal calls; unlike the call itself it tells 1 from 1.0 and True."""
        given = repr((self.args, self.kwargs))
        return self.target, given, self.slots, self.context, self.training

    @property
    def positions(self) -> tuple[int, ...]:
        """For each slot, the first of the op's references that is it; -1 for opaque state."""
        names = [r.name for a in (*self.args, *(v for _, v in self.kwargs)) for r in refs(a)]
        slots = map(str, range(len(self.slots)))
        return tuple(names.index(slot) if slot in names else -1 for slot in slots)


@dataclass(frozen=True, slots=True)
class Forward:
    """What a probe's forward found."""

    work: Work
    results: tuple[Layout | None, ...]
    """None for a result that is no tensor."""
    shares: tuple[int, ...]
    """For each result, the reference whose storage it lives in, or -1."""
    saved: tuple[Saved, ...]
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class Backward:
    """What a probe's backward found."""

    input: Work
    weight: Work
    workspace_bytes: int


NO_BACKWARD = Backward(Work(), Work(), 0)


class Probe:
    """One op run forward, with its autograd graph kept for `backward`. Use inside fake_tensors."""

    forward: Forward

    def __init__(self, call: Call, device: Device, opaque: Mapping[str, nn.Module]) -> None:
        self._device = device
        self._call = call
        tensors = [_tensor(slot) for slot in call.slots]
        self._edges = [
            (slot.weight, get_gradient_edge(tensor))
            for slot, tensor in zip(call.slots, tensors, strict=True)
            if isinstance(slot, Layout) and slot.requires_grad
        ]
        counter, packed = KernelCounter(device), _Packed()
        with ExitStack() as stack:
            stack.enter_context(counter)
            stack.enter_context(saved_tensors_hooks(packed.pack, packed.unpack))
            for context in call.context:
                enter_context(context, stack, "cpu")
            out = call_function(call, device.kind, opaque, tensors, _CPU)()
        self._results = list(out) if call.sequence else [out]
        self.forward = self._forward(counter, packed, tensors)

    def _forward(self, counter: KernelCounter, packed: _Packed, tensors: list[Any]) -> Forward:
        owners = _owners(self._call, tensors)
        saved = [*_saved(self._call, packed, owners, self._results)]
        internal = [s.n_bytes for s in saved if s.kind == "internal"]
        if packed.tensors:
            hidden = enumerate(counter.hidden_bytes, len(internal))
            saved.extend(Saved("internal", index, n_bytes) for index, n_bytes in hidden)
        positions = self._call.positions
        slots = [owners.get(storage_key(r)) if _is_tensor(r) else None for r in self._results]
        shares = tuple(-1 if slot is None else positions[slot] for slot in slots)
        layouts = tuple(map(self._result, self._results))
        own = {storage_key(r): storage_bytes(r) for r in self._results if _is_tensor(r)}
        kept = sum(n for key, n in own.items() if key not in owners)
        workspace = max(0, counter.alive.peak_bytes - kept - sum(internal))
        return Forward(counter.work, layouts, shares, tuple(saved), workspace)

    def _result(self, result: Any) -> Layout | None:
        if not _is_tensor(result):
            return None
        only_weights = all(s.weight for s in self._call.slots if isinstance(s, Layout))
        return Layout(
            tuple(result.shape), tuple(result.stride()), str(result.dtype)[6:],
            result.requires_grad, bool(self._edges) and only_weights, False, storage_bytes(result),
        )  # fmt: skip

    def backward(self, received: Sequence[bool]) -> Backward:
        """The work of the gradients needed, where the results marked `received` have one."""
        results = [
            r for r, has in zip(self._results, received, strict=True)
            if has and _is_tensor(r) and r.requires_grad
        ]  # fmt: skip
        if not results or not self._edges:
            return NO_BACKWARD
        whole = self._gradients(results, [edge for _, edge in self._edges])
        inputs = [edge for weight, edge in self._edges if not weight]
        if len(inputs) == len(self._edges):
            return Backward(whole.work, Work(), whole.workspace)
        half = self._gradients(results, inputs).work if inputs else Work()
        return Backward(half, _difference(whole.work, half), whole.workspace)

    def _gradients(self, results: list[torch.Tensor], edges: list[Any]) -> _Gradients:
        gradients = [torch.empty_like(result) for result in results]
        with KernelCounter(self._device) as counter:
            found = torch.autograd.grad(
                results, edges, gradients, retain_graph=True, allow_unused=True
            )
        del found
        return _Gradients(counter.work, counter.alive.peak_bytes)


@dataclass(frozen=True, slots=True)
class _Gradients:
    work: Work
    workspace: int


class _Packed:
    """The tensors autograd packed, kept alive so that their storages stay distinct."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        kept = tensor.detach()  # the tensor itself would hold its own graph: a cycle
        self.tensors.append(kept)
        return kept

    def unpack(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def _is_tensor(item: Any) -> bool:
    return isinstance(item, torch.Tensor)


def _tensor(slot: Layout | int | float | bool) -> Any:
    if not isinstance(slot, Layout):
        return slot
    dtype = getattr(torch, slot.dtype)
    if slot.weight or not slot.requires_grad:
        return fake_leaf(slot.shape, slot.stride, dtype, slot.requires_grad)
    return fake_activation(slot.shape, slot.stride, dtype)


def enter_context(context: Context, stack: ExitStack, device_type: str) -> None:
    """Enters the region that an op runs in; recomputation and modes are no regions of torch."""
    match context:
        case GradMode(enabled):
            stack.enter_context(torch.set_grad_enabled(enabled))
        case Autocast(dtype, enabled):
            stack.enter_context(torch.autocast(device_type, getattr(torch, dtype), enabled=enabled))


def call_function(
    call: Call,
    kind: str,
    opaque: Mapping[str, nn.Module],
    tensors: list[Any],
    place: torch.device,
) -> Callable[[], Any]:
    """What runs the op on tensors for its slots; `kind` picks substitutes for a device's kind."""
    function = substitute(call.target, kind) or function_of(call.target, opaque)

    def value(arg: Arg) -> Any:
        return torch_value(
            arg, lambda r: tensors[int(r.name)], training=call.training, device=place
        )

    args, kwargs = tuple(map(value, call.args)), {k: value(v) for k, v in call.kwargs}
    if isinstance(function, nn.Module):
        state = {name: tensors[slot] for name, slot in call.state}
        return lambda: functional_call(function, state, args, kwargs)
    return lambda: function(*args, **kwargs)


def _owners(call: Call, tensors: list[Any]) -> dict[int, int]:
    """The slot that owns each storage the op was given."""
    return {storage_key(t): slot for slot, t in enumerate(tensors) if _is_tensor(t)}


def _saved(
    call: Call, packed: _Packed, owners: Mapping[int, int], results: list[Any]
) -> Iterator[Saved]:
    """Each storage once; weights are held anyway and do not count."""
    made = {storage_key(r): j for j, r in reversed(list(enumerate(results))) if _is_tensor(r)}
    storages = {storage_key(t): storage_bytes(t) for t in packed.tensors}
    internal = 0
    for key, n_bytes in storages.items():
        if key in owners:
            slot = call.slots[owners[key]]
            if isinstance(slot, Layout) and not slot.held:
                yield Saved("argument", call.positions[owners[key]], slot.storage_bytes)
        elif key in made:
            yield Saved("result", made[key], n_bytes)
        else:
            yield Saved("internal", internal, n_bytes)
            internal += 1


def _difference(whole: Work, part: Work) -> Work:
    return Work(
        max(0.0, whole.flops - part.flops),
        max(0.0, whole.elementwise_flops - part.elementwise_flops),
        max(0.0, whole.bytes - part.bytes),
        max(0, whole.kernels - part.kernels),
        max(0.0, whole.seconds - part.seconds),
    )
