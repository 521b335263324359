"""Times each distinct op of a graph on the device that is present.

An op is run on random data of its own layouts: once to warm up, then until it has run often
enough or used up its time, and the median counts. All ops take several turns, and the median of
those counts, so that other work on the machine, which comes and goes, disturbs one turn of many ops
and not all of one. What does not fit in memory here gets no time: it keeps its roofline estimate,
and its cost says so.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from stagecut.ir.device import Device
from stagecut.ir.graph import Graph
from stagecut.ir.types import TensorType, is_differentiable
from stagecut.passes.costs import DistinctCall, distinct_calls
from stagecut.passes.layout import Layout
from stagecut.passes.optimizing import step_name, step_of
from stagecut.passes.probe import Call, call_function, enter_context
from stagecut.passes.profile import Profile, Timing, load_profile, save_profile

_TURNS = 3
_MOST_RUNS = 10
"""In one turn."""
_LEAST_RUNS = 3
_OP_SECONDS = 0.04
"""After `_LEAST_RUNS` an op's turn ends when its runs took this long."""
_MEMORY_SHARE = 0.5
"""An op whose tensors take more of the free memory than this is not run."""

_STEP_COPIES = 16
"""Of a 16-bit weight: its gradient, a float32 copy, two moments, and what a step makes."""

_MEMINFO = Path("/proc/meminfo")
_ASSUMED_FREE_BYTES = 4 * 2**30
"""Where the system does not say."""

Progress = Callable[[int, int, str], None]
"""Called with how many ops are done, how many there are, and the next one's target."""


def measure(
    graph: Graph,
    device: Device,
    opaque: Mapping[str, nn.Module],
    training: bool,
    *,
    optimizer: str | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Profile:
    """The times of a graph's distinct ops, and of the optimizer's steps, on the present device.

    Times already in the file `cache` are taken from there if it was written on the same device,
    torch and number of threads; new ones are added to it. `device` is planned for and only says
    which kind of kernels to run.
    """
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    profile = _known(cache, place)
    missing = [
        c for c in distinct_calls(graph, device, opaque, training) if c.name not in profile.timings
    ]
    kinds = _steps(graph, optimizer, profile) if training and optimizer is not None else {}
    turns: dict[str, list[Timing]] = defaultdict(list)
    for turn in range(_TURNS):
        for done, distinct in enumerate(missing, turn * len(missing)):
            if progress is not None:
                progress(done, _TURNS * len(missing), distinct.call.target)
            if (timing := _timed(distinct, place, opaque)) is not None:
                turns[distinct.name].append(timing)
        _add_steps(kinds, optimizer or "", place, turns)
    timings = {name: _middle(found) for name, found in turns.items()}
    profile = profile.with_timings(timings)
    if cache is not None and timings:
        save_profile(profile, cache)
    return profile


def step_timings(
    graph: Graph, profile: Profile | None, optimizer: str
) -> tuple[tuple[str, float], ...]:
    """(weight, seconds) of the optimizer's step of each weight that a profile has one of."""
    if profile is None:
        return ()
    named = ((w.name, profile.timings.get(step_name(w.type, optimizer))) for w in graph.weights)
    return tuple((name, timing.forward) for name, timing in named if timing is not None)


def _steps(graph: Graph, optimizer: str, known: Profile) -> dict[str, TensorType]:
    """The distinct trainable weights whose step is not timed yet."""
    kinds = {step_name(w.type, optimizer): w.type for w in graph.weights if w.trainable}
    return {name: kind for name, kind in kinds.items() if name not in known.timings}


def _add_steps(
    kinds: Mapping[str, TensorType],
    optimizer: str,
    place: torch.device,
    turns: dict[str, list[Timing]],
) -> None:
    """Times the step of each of the weights that fits here."""
    for name, kind in kinds.items():
        if _STEP_COPIES * kind.hint_bytes > _MEMORY_SHARE * _free_bytes(place):
            continue
        step = step_of(kind, optimizer, place, foreach=place.type == "cuda")
        if step is not None:
            turns[name].append(Timing(_median_seconds(step, place), 0.0, 0.0))


def _middle(turns: Sequence[Timing]) -> Timing:
    """The median of some turns of one op."""
    return Timing(
        statistics.median(turn.forward for turn in turns),
        statistics.median(turn.backward_input for turn in turns),
        statistics.median(turn.backward_weight for turn in turns),
    )


def present_device_name() -> str:
    """The name of the device that `measure` times on."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"CPU ({torch.backends.cpu.get_cpu_capability()})"


def _known(cache: Path | None, place: torch.device) -> Profile:
    threads = torch.get_num_threads() if place.type == "cpu" else 0
    empty = Profile(present_device_name(), torch.__version__, threads)
    if cache is None or not cache.exists():
        return empty
    found = load_profile(cache)
    return found if found.same_place(empty) else empty


def _timed(
    distinct: DistinctCall, place: torch.device, opaque: Mapping[str, nn.Module]
) -> Timing | None:
    """The op's times; None where it does not fit here, or does not run on random data."""
    if _bytes(distinct.call) > _MEMORY_SHARE * _free_bytes(place):
        return None
    try:
        return _run(distinct, place, opaque)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None
    except Exception:  # any operator, and any user's module, may refuse random data in its own way
        return None


def _run(distinct: DistinctCall, place: torch.device, opaque: Mapping[str, nn.Module]) -> Timing:
    call = distinct.call
    function, _ = _prepared(call, place, opaque)
    # An op in place changes its arguments: the backward takes fresh ones.
    again, edges = _prepared(call, place, opaque)
    with ExitStack() as stack:
        for context in call.context:
            enter_context(context, stack, place.type)
        forward = _median_seconds(function, place)
        out = again()
    made = list(out) if call.sequence else [out]
    results = [
        r for r, has in zip(made, distinct.received, strict=True)
        if has and isinstance(r, torch.Tensor) and r.requires_grad
    ]  # fmt: skip
    inputs = [edge for weight, edge in edges if not weight]
    half = _backward_seconds(results, inputs, place)
    if len(inputs) == len(edges):
        return Timing(forward, half, 0.0)
    whole = _backward_seconds(results, [edge for _, edge in edges], place)
    return Timing(forward, half, max(0.0, whole - half))


def _prepared(
    call: Call, place: torch.device, opaque: Mapping[str, nn.Module]
) -> tuple[Callable[[], Any], list[tuple[bool, Any]]]:
    """The call on fresh data, and for each argument that needs a gradient (is weight, edge)."""
    tensors = [_tensor(slot, place) for slot in call.slots]
    edges = [
        (slot.weight, get_gradient_edge(tensor))
        for slot, tensor in zip(call.slots, tensors, strict=True)
        if isinstance(slot, Layout) and slot.requires_grad
    ]
    return call_function(call, "", opaque, tensors, place), edges


def _backward_seconds(
    results: Sequence[torch.Tensor], edges: Sequence[Any], place: torch.device
) -> float:
    if not results or not edges:
        return 0.0
    gradients = [torch.ones_like(result) for result in results]
    return _median_seconds(
        lambda: torch.autograd.grad(
            results, edges, gradients, retain_graph=True, allow_unused=True
        ),
        place,
    )


def _median_seconds(code: Callable[[], Any], place: torch.device) -> float:
    code()
    times: list[float] = []
    while len(times) < _MOST_RUNS and (len(times) < _LEAST_RUNS or sum(times) < _OP_SECONDS):
        with _stopwatch(place) as elapsed:
            code()
        times.append(elapsed[0])
    return statistics.median(times)


@contextmanager
def _stopwatch(place: torch.device) -> Iterator[list[float]]:
    """A list that holds the seconds of the block afterwards."""
    elapsed: list[float] = []
    if place.type != "cuda":
        start = time.perf_counter()
        yield elapsed
        elapsed.append(time.perf_counter() - start)
        return
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    first.record()
    yield elapsed
    second.record()
    second.synchronize()
    elapsed.append(first.elapsed_time(second) / 1e3)


def _tensor(slot: Layout | int | float | bool, place: torch.device) -> Any:
    """Random data; indices are all 0, which any table has."""
    if not isinstance(slot, Layout):
        return slot
    pairs = list(zip(slot.shape, slot.stride, strict=True))
    # What is repeated along a dimension, as `expand` makes it, exists once.
    shape = [1 if stride == 0 else size for size, stride in pairs]
    stride = [stride or 1 for stride in slot.stride]
    dtype = getattr(torch, slot.dtype)
    tensor = torch.empty_strided(shape, stride, dtype=dtype, device=place).zero_()
    if is_differentiable(slot.dtype):
        tensor.normal_()
    if slot.requires_grad:
        tensor.requires_grad_()
        tensor = tensor if slot.weight else tensor.clone()  # ops in place refuse a leaf
    return tensor if tuple(shape) == slot.shape else tensor.expand(slot.shape)


def _bytes(call: Call) -> int:
    """What the op's arguments take, three times over: with results and gradients."""
    return 3 * sum(slot.n_bytes for slot in call.slots if isinstance(slot, Layout))


def _free_bytes(place: torch.device) -> int:
    if place.type == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    if not _MEMINFO.exists():
        return _ASSUMED_FREE_BYTES
    lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    found = next(line for line in lines if line.startswith("MemAvailable"))
    return int(found.split()[1]) * 1024
