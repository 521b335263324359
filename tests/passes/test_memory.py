"""Stage reports: what is held, sent and received, against sums made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from stagecut.ir.devices import cluster
from stagecut.ir.plan import StageReport
from stagecut.ir.solution import Assignment
from stagecut.partitioner.evaluate import evaluate
from stagecut.passes.held import Held
from stagecut.passes.liveness import Profile
from stagecut.passes.memory import describe_stages, stage_memory
from tests.passes.test_problem import LINE, WEIGHTS, built, graph_of_text

TENSOR = 8 * 8 * 4


def reports(stages: list[int], n_stages: int = 2) -> tuple[StageReport, ...]:
    graph = graph_of_text(LINE, WEIGHTS)
    problem, clustering = built(graph, n_stages)
    stage = np.array(stages)
    return describe_stages(
        graph, problem, clustering, stage, evaluate(problem, Assignment(stage)),
        cluster("dgx-a100", n_stages), tuple(range(n_stages)), "adamw", True,
    )  # fmt: skip


def test_terms_of_each_stage() -> None:
    first, second = reports([0, 1, 1])
    assert (first.memory.weights, first.memory.gradients, first.memory.optimizer) == (
        TENSOR, TENSOR, 2 * TENSOR,
    )  # fmt: skip
    assert first.memory.saved_per_microbatch == TENSOR  # a, which it sent; x is the user's
    assert first.memory.in_flight == 2
    assert second.memory.saved_per_microbatch == 3 * TENSOR  # a, relu's result, and the output
    assert (first.memory.limit, first.memory.margin) == (0.9 * 80e9, 0.1 * 80e9)
    assert first.memory.fits


PROFILE = Profile(
    kept=100, boundary=10, forward_peak=120, first_backward_peak=50, first_backward_gradients=20,
    later_backward_peak=40,
)  # fmt: skip


@pytest.mark.parametrize(
    ("gradients", "in_flight", "refills", "step_workspace", "present", "flying", "transient"),
    [
        (30, 3, True, 0, 30, 3, 40),  # a later backward: 30 + 300 + 40
        (30, 3, False, 0, 20, 3, 30),  # the first one: 20 + 300 + 30, a later 30 + 200 + 40
        (500, 3, False, 0, 500, 2, 40),  # 500 + 200 + 40
        (30, 1, True, 0, 30, 1, 40),  # a later backward again: 30 + 100 + 40
        (30, 1, True, 400, 30, 0, 400),  # the optimizer's step
    ],
)
def test_the_peak_is_the_largest_moment(
    gradients: int, in_flight: int, refills: bool, step_workspace: int, present: int, flying: int,
    transient: int,
) -> None:  # fmt: skip
    held = Held(1000, gradients, 2000, step_workspace)
    memory = stage_memory(held, PROFILE, in_flight, refills, True, 1e9)
    assert (memory.gradients, memory.in_flight) == (present, flying)
    assert memory.boundary + memory.workspace == transient
    assert memory.total == 3000 + present + flying * 100 + transient


def test_modules_ops_and_work() -> None:
    first, second = reports([0, 1, 1])
    assert (first.modules, second.modules) == (("first",), ("second",))
    assert (first.ops, second.ops) == (("a",), ("b", "c"))
    assert first.flops_forward == 2 * 8 * 8 * 8
    assert first.flops_backward == 2 * 8 * 8 * 8  # the weight's gradient alone
    assert second.flops_backward == 2 * 2 * 8 * 8 * 8
    assert (first.device, second.rank) == ("A100-80GB", 1)


def test_transfers() -> None:
    first, second = reports([0, 1, 1])
    (sent,) = first.sends
    assert (sent.value, sent.source, sent.destination) == ("a", 0, 1)
    assert (sent.n_bytes, sent.gradient_bytes) == (TENSOR, TENSOR)
    assert second.receives == first.sends and not first.receives and not second.sends
    assert first.send_seconds > 0 == first.sync_seconds


@pytest.mark.parametrize("stages", [[0, 1, 1], [0, 0, 1]])
def test_reports_agree_with_the_evaluator(stages: list[int]) -> None:
    graph = graph_of_text(LINE.replace("@v", "@w"), WEIGHTS)
    problem, clustering = built(graph)
    stage = np.array(stages)
    evaluation = evaluate(problem, Assignment(stage))
    found = describe_stages(
        graph, problem, clustering, stage, evaluation, cluster("dgx-a100", 2), (0, 1), "adamw",
        True,
    )  # fmt: skip
    for index, report in enumerate(found):
        memory = report.memory
        assert report.seconds == pytest.approx(evaluation.load_seconds[index])
        assert memory.weights + memory.optimizer == 0.75 * evaluation.weight_bytes[index]
    assert sum(t.n_bytes + t.gradient_bytes for r in found for t in r.sends) == evaluation.bytes_cut
