"""Why a plan's cut is where it is, in the words of the model's code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath

from stagecut.ir.explanation import Explanation, Shift
from stagecut.ir.graph import Op
from stagecut.ir.plan import Plan
from stagecut.ir.problem import IntArray, Problem
from stagecut.ir.solution import Assignment
from stagecut.partitioner import explain
from stagecut.passes import Clustering
from stagecut.placing import pins_against, posed_again, stages_of_clusters
from stagecut.timetables import FOLDED

_SHOWN = 3
"""Ops of a group that are named."""


def explained(plan: Plan, k: int) -> tuple[Explanation, Mapping[Shift, str]]:
    """What limits stage `k`, what moving its boundaries would do, and the names of what moves.

    Stages that fit their memory must still fit after a move, and what is pinned stays there.

    Raises:
        ArgumentError: there is no such stage.
    """
    limits = [s.memory.limit if s.memory.fits else float("inf") for s in plan.stages]
    problem, clustering = posed_again(plan, limits)
    where = stages_of_clusters(plan, clustering)
    owner = plan.device_of_stage if plan.schedule == FOLDED else None
    found = explain(problem, Assignment(where), k, owner)
    shifts = tuple(_in_words(plan, problem, clustering, where, shift) for shift in found.shifts)
    found = replace(found, shifts=shifts)
    return found, {shift: _name(plan, clustering, shift) for shift in found.shifts}


def _in_words(
    plan: Plan, problem: Problem, clustering: Clustering, where: IntArray, shift: Shift
) -> Shift:
    """With the pins that the move would break as the user wrote them."""
    after = where.copy()
    after[list(shift.clusters)] = shift.destination
    broken = pins_against(plan, problem, clustering, after)
    said = tuple(f"{problem.names[cluster]!r} is pinned" for cluster in broken)
    others = tuple(fault for fault in shift.faults if not fault.startswith(said))
    return replace(shift, faults=(*dict.fromkeys(broken.values()), *others))


def _name(plan: Plan, clustering: Clustering, shift: Shift) -> str:
    """`transformer.h.3.mlp.c_fc: addmm_13, view_40 (modeling_gpt2.py:310)`."""
    moved = [clustering.ops_of_cluster[cluster] for cluster in shift.clusters]
    ops = [plan.graph.ops[op] for group in moved for op in group]
    longest = max(ops, key=_seconds)
    names = [op.name for op in ops[:_SHOWN]] + ["…"] * (len(ops) > _SHOWN)
    scope = f"{longest.scope}: " if longest.scope else ""
    source = f" ({PurePath(longest.source).name})" if longest.source else ""
    return f"{scope}{', '.join(names)}{source}"


def _seconds(op: Op) -> float:
    return op.cost.forward.seconds + op.cost.backward.seconds if op.cost else 0.0
