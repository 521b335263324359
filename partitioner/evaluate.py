"""The one exact score: what every stage of an assignment computes, moves and holds.

Legend:  k stages, n clusters, v values, t device kinds.
"""

from __future__ import annotations

import numpy as np

from stagecut.ir.errors import ArgumentError
from stagecut.ir.problem import FloatArray, Incidence, IntArray, Problem
from stagecut.ir.solution import Assignment, Evaluation
from stagecut.partitioner.arrays import sums

LIMIT_TOLERANCE = 1 + 1e-12
"""Slack on memory limits, for byte counts that were themselves summed in floating point."""
_SHOWN = 3


def evaluate(problem: Problem, assignment: Assignment) -> Evaluation:
    """Scores `assignment` under the problem's own rules, in O(clusters + memberships).

    An assignment that breaks a constraint is scored all the same; `faults` says what it breaks.

    Raises:
        ArgumentError: the assignment has the wrong length or names a stage that does not exist.
    """
    stage = _checked_stages(problem, assignment)
    k = problem.n_stages
    kind, clusters = problem.device_kind[stage], np.arange(problem.n)
    forward = sums(stage, problem.forward_seconds[kind, clusters], k)
    backward = sums(stage, problem.backward_seconds[kind, clusters], k)
    send, receive, bytes_cut = _transfers(problem, stage)
    sync = _sync_seconds(problem, stage)
    held = held_bytes(problem.weights, problem.weight_bytes, stage, k)
    saved = held_bytes(problem.saved, problem.saved_bytes, stage, k)
    workspace = np.zeros(k)
    np.maximum.at(workspace, stage, problem.workspace_bytes)
    memory = held + saved * problem.in_flight + workspace
    return Evaluation(
        forward_seconds=forward,
        backward_seconds=backward,
        send_seconds=send,
        receive_seconds=receive,
        sync_seconds=sync,
        load_seconds=forward + backward + send + receive + sync,
        weight_bytes=held,
        saved_bytes=saved,
        workspace_bytes=workspace,
        memory_bytes=memory,
        bytes_cut=bytes_cut,
        faults=tuple(_faults(problem, stage, memory)),
    )


def score(evaluation: Evaluation) -> tuple[bool, float, float, float]:
    """What is minimised, in order: broken constraints, bottleneck, bytes cut, unevenness.

    The bottleneck counts to ten digits, so that rounding noise decides nothing.
    """
    bottleneck = float(f"{evaluation.bottleneck_seconds:.10e}")
    unevenness = float((evaluation.load_seconds**2).sum())
    return bool(evaluation.faults), bottleneck, evaluation.bytes_cut, unevenness


def touched(items: Incidence, stage: IntArray, n_stages: int) -> tuple[IntArray, IntArray]:
    """The distinct (item, stage) pairs such that the stage has a member of the item."""
    item = np.repeat(np.arange(len(items)), np.diff(items.offsets))
    keys = np.unique(item * n_stages + stage[items.members])
    return keys // n_stages, keys % n_stages


def held_bytes(items: Incidence, item_bytes: FloatArray, stage: IntArray, k: int) -> FloatArray:
    """Bytes [k] of the items that each stage has a member of, each item once."""
    item, at = touched(items, stage, k)
    return sums(at, item_bytes[item], k)


def transfer_seconds(
    problem: Problem, value: IntArray, source: IntArray, destination: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Seconds to move each value's activation there, and its gradient back."""
    latency, per_byte = problem.link_latency_seconds, problem.link_seconds_per_byte
    forward_bytes = problem.value_forward_bytes[value]
    backward_bytes = problem.value_backward_bytes[value]
    there = latency[source, destination] + forward_bytes * per_byte[source, destination]
    back = latency[destination, source] + backward_bytes * per_byte[destination, source]
    return there, np.where(backward_bytes > 0, back, 0.0)


def round_trip_seconds(problem: Problem, source: int, destination: int) -> FloatArray:
    """Seconds [v] to send each value from one stage to another and its gradient back."""
    every = np.arange(len(problem.values))
    at = np.zeros_like(every)
    there, back = transfer_seconds(problem, every, at + source, at + destination)
    return there + back


def _checked_stages(problem: Problem, assignment: Assignment) -> IntArray:
    stage = np.asarray(assignment.stage, dtype=np.int64)
    if stage.shape != (problem.n,):
        raise ArgumentError(
            f"the assignment has shape {stage.shape} and the problem {problem.n} groups of ops; "
            "give one stage for each"
        )
    outside = np.flatnonzero((stage < 0) | (stage >= problem.n_stages))
    if len(outside):
        first = outside[0]
        raise ArgumentError(
            f"{len(outside)} groups of ops are assigned to stages that do not exist, first "
            f"{problem.names[first]!r} to stage {stage[first]}; there are {problem.n_stages} stages"
        )
    return stage


def _transfers(problem: Problem, stage: IntArray) -> tuple[FloatArray, FloatArray, float]:
    """Seconds sending and receiving [k], and the bytes that cross."""
    k, values = problem.n_stages, problem.values
    producer_stage = stage[values.members[values.offsets[:-1]]]
    value, consumer = touched(values, stage, k)
    crosses = consumer != producer_stage[value]
    value, consumer = value[crosses], consumer[crosses]
    producer = producer_stage[value]
    there, back = transfer_seconds(problem, value, producer, consumer)
    both_bytes = problem.value_forward_bytes + problem.value_backward_bytes
    send = sums(consumer, back, k)
    receive = sums(consumer, there, k)
    if problem.send_rule == "once":
        value, first = np.unique(value, return_index=True)
        producer = producer[first]
        there = np.maximum.reduceat(there, first) if len(first) else there
        back = np.maximum.reduceat(back, first) if len(first) else back
    send += sums(producer, there, k)
    receive += sums(producer, back, k)
    return send, receive, float(both_bytes[value].sum())


def _sync_seconds(problem: Problem, stage: IntArray) -> FloatArray:
    weight, holder = touched(problem.weights, stage, problem.n_stages)
    shared = np.bincount(weight, minlength=len(problem.weights))[weight] > 1
    seconds = problem.weight_sync_seconds[weight[shared]]
    return sums(holder[shared], seconds, problem.n_stages)


def _faults(problem: Problem, stage: IntArray, memory: FloatArray) -> list[str]:
    return [
        *_order_faults(problem, stage),
        *_pin_faults(problem, stage),
        *_memory_faults(problem, memory),
        *_empty_faults(problem, stage),
    ]


def _order_faults(problem: Problem, stage: IntArray) -> list[str]:
    source, destination = problem.edges.T
    backwards = np.flatnonzero(stage[source] > stage[destination])
    faults = [
        f"{problem.names[source[e]]!r} (stage {stage[source[e]]}) must not come after "
        f"{problem.names[destination[e]]!r} (stage {stage[destination[e]]})"
        for e in backwards[:_SHOWN]
    ]
    return faults + _and_more(len(backwards), "edges go backwards")


def _pin_faults(problem: Problem, stage: IntArray) -> list[str]:
    astray = np.flatnonzero((problem.pins >= 0) & (problem.pins != stage))
    faults = [
        f"{problem.names[c]!r} is pinned to stage {problem.pins[c]} and is in stage {stage[c]}"
        for c in astray[:_SHOWN]
    ]
    return faults + _and_more(len(astray), "groups of ops are not where they are pinned")


def _memory_faults(problem: Problem, memory: FloatArray) -> list[str]:
    limit = problem.memory_limit_bytes
    return [
        f"stage {s} needs {memory[s]:.0f} bytes and has {limit[s]:.0f}"
        for s in np.flatnonzero(memory > limit * LIMIT_TOLERANCE)
    ]


def _empty_faults(problem: Problem, stage: IntArray) -> list[str]:
    if problem.allow_empty:
        return []
    counts = np.bincount(stage, minlength=problem.n_stages)
    return [f"stage {s} is empty" for s in np.flatnonzero(counts == 0)]


def _and_more(count: int, what: str) -> list[str]:
    return [f"{count} {what} in all"] if count > _SHOWN else []
