"""Why a plan's cut is where it is, in the words of the model's code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from stagecut.ir.explanation import Explanation, Shift
from stagecut.ir.graph import Op
from stagecut.ir.plan import Plan
from stagecut.ir.solution import Assignment
from stagecut.partitioner import explain
from stagecut.passes import Clustering
from stagecut.placing import posed_again, stages_of_clusters

_SHOWN = 3
"""Ops of a group that are named."""


def explained(plan: Plan, k: int) -> tuple[Explanation, Mapping[Shift, str]]:
    """What limits stage `k`, what moving its boundaries would do, and the names of what moves.

    Stages that fit their memory must still fit after a move. Pins are not in a plan: a move may
    contradict them.

    Raises:
        ArgumentError: there is no such stage.
    """
    limits = [s.memory.limit if s.memory.fits else float("inf") for s in plan.stages]
    problem, clustering = posed_again(plan, limits)
    found = explain(problem, Assignment(stages_of_clusters(plan, clustering)), k)
    return found, {shift: _name(plan, clustering, shift) for shift in found.shifts}


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
