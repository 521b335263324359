"""`tied="colocate"`: all users of a weight in one stage, the best such cut, training as ever."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import stagecut
from stagecut.ir import plan as ir
from stagecut.ir.devices import cluster
from stagecut.ir.errors import ArgumentError, InfeasibleError
from stagecut.passes import Clustering, tied_users, weight_names
from stagecut.placing import posed_again
from tests.face.test_tied import IDS, Language, Twice
from tests.partitioner.oracle import loads, memory
from tests.support.equality import Case, assert_trained_alike, train_pipeline, train_unsplit
from tests.support.ranks import results, run_ranks

WIDTH, HIDDEN, TOKENS = 64, 1024, 512
X = torch.zeros(2, TOKENS, WIDTH)


class Coder(nn.Module):
    """One large weight used twice, with most of the work between; a head of still more memory."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.code = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.decode = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.again = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.again.weight = self.code.weight
        self.after = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.before:
            x = layer(x).tanh()
        x = self.again(self.decode(self.code(x).tanh()).tanh()).tanh()[:, -1]
        for layer in self.after:
            x = layer(x).tanh()
        return x


def partitioned(**changes: object) -> stagecut.Plan:
    given = {"cluster": cluster("T4", 2), "method": "exact", **changes}
    return stagecut.partition(Coder(), 2, (X,), **given)  # type: ignore[arg-type]


def homes(plan: stagecut.Plan) -> set[int]:
    """The stages of the users of the tied weight."""
    users = tied_users(plan.data.graph)["code.weight"]
    return {stage for op in users for stage in plan.data.stages_of_ops[op]}


def in_two(data: ir.Plan) -> list[tuple[bool, float, float]]:
    """Of every pipeline of two stages: users together, bytes of the fuller, bottleneck."""
    problem, clustering = posed_again(replace(data, tied="replicate"))
    users = _users(data, clustering)
    found = []
    for stage in _pipelines(problem.edges, problem.pins):
        together = len({stage[cluster] for cluster in users}) == 1
        found.append((together, max(memory(problem, stage)), max(loads(problem, stage))))
    return found


def _users(data: ir.Plan, clustering: Clustering) -> set[int]:
    return {clustering.cluster_of_op[op] for op in tied_users(data.graph)["code.weight"]}


def _pipelines(edges: np.ndarray, pins: np.ndarray) -> list[list[int]]:
    """Every assignment to two non-empty stages that precedence and pins allow."""
    made: list[list[int]] = [[]]
    for cluster_, pin in enumerate(pins.tolist()):
        needs = edges[edges[:, 1] == cluster_, 0].tolist()
        made = [
            [*stage, where]
            for stage in made
            for where in (0, 1)
            if pin in (-1, where) and all(stage[a] <= where for a in needs)
        ]
    return [stage for stage in made if len(set(stage)) == 2]


def test_the_best_cut_with_the_users_together_is_found() -> None:
    apart, together = partitioned(), partitioned(tied="colocate")
    assert homes(apart) == {0, 1}
    assert len(homes(together)) == 1
    pipelines = in_two(together.data)
    best = min(bottleneck for _, _, bottleneck in pipelines)
    best_together = min(bottleneck for kept, _, bottleneck in pipelines if kept)
    assert apart.bottleneck_seconds == pytest.approx(best, rel=1e-6)
    assert together.bottleneck_seconds == pytest.approx(best_together, rel=1e-6)
    assert best < best_together
    assert not any(stage.sync_seconds for stage in together.stages)


def test_where_two_copies_do_not_fit_one_does() -> None:
    plan = partitioned(tied="colocate", recompute="never")
    pipelines = in_two(plan.data)
    limit = 1.001 * min(peak for kept, peak, _ in pipelines if kept)
    assert all(peak > limit for kept, peak, _ in pipelines if not kept), "two copies fit too"
    held = partitioned(tied="colocate", recompute="never", memory_limit=limit)
    assert held.fits and len(homes(held)) == 1
    with pytest.raises(InfeasibleError, match="Use method='auto'"):
        partitioned(method="uniform", recompute="never", memory_limit=limit)


def test_the_plan_says_what_both_ways_cost() -> None:
    plan = partitioned(tied="colocate")
    (note,) = [note for note in plan.data.notes if "is tied" in note]
    assert note.startswith("code.weight is tied: all its users are in stage ")
    assert 'as tied="colocate" asks' in note
    assert "Held by two stages, it would cost 1.00 MiB more memory and a sum of its grad" in note
    assert plan.data.tied == "colocate"


def test_a_stage_that_it_makes_the_largest_is_named() -> None:
    plan = stagecut.partition(Coder(), 3, (X,), cluster=cluster("T4", 3), tied="colocate")
    (note,) = [note for note in plan.data.notes if "is tied" in note]
    assert "That alone is more than an even share" in note
    assert 'tied="replicate" may' in note


def test_an_edit_keeps_the_users_together() -> None:
    plan = partitioned(tied="colocate")
    (home,) = homes(plan)
    problem, clustering = posed_again(plan.data)
    weight = weight_names(plan.data.graph, clustering).index("code.weight")
    assert len(problem.weights[weight]) == 1
    edited = plan.move("before.1", stage=home)
    assert homes(edited) == {home}
    assert "stage" in plan.explain(0)


def test_what_leaves_nothing_to_cut_says_why() -> None:
    with pytest.raises(InfeasibleError, match=r"groups? .*embed\.weight in one stage.*replicate"):
        stagecut.partition(Language(), 2, (IDS,), tied="colocate")


def test_pins_that_part_the_users_are_named() -> None:
    with pytest.raises(InfeasibleError) as error:
        stagecut.partition(
            Twice(), 2, (torch.zeros(2, 512),), tied="colocate", pins={"first": 0, "second": 1}
        )
    told = str(error.value)
    assert "first.weight is used by first in stage 0 and second in stage 1" in told
    assert 'tied="replicate"' in told


def test_another_word_is_refused() -> None:
    with pytest.raises(ArgumentError, match="tied is 'merge'; choose replicate or colocate"):
        partitioned(tied="merge")


def example() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """For the command line, as `tests.face.test_colocated:example`."""
    return Coder(), (X,)


def mean_square(out: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(out, torch.zeros_like(out))


def built() -> Case:
    torch.manual_seed(0)
    return Case(Coder(), (torch.randn(8, 4, WIDTH),), {}, mean_square)


def planned(case: Case) -> stagecut.Plan:
    return stagecut.partition(case.model, 2, (case.args[0][:2],), tied="colocate", n_microbatches=4)


def test_trains_as_the_unsplit_model() -> None:
    case = built()
    want = train_unsplit(case, 4, 3)
    pipe = stagecut.pipeline(planned(case), case.model, loss_fn=case.loss, runtime="local")
    assert_trained_alike(train_pipeline(case, pipe, 3), want)


def trained_on(rank: int) -> list[str]:
    case = built()
    want = train_unsplit(case, 4, 3)
    plan = planned(case)
    pipe = stagecut.pipeline(plan, case.model, loss_fn=case.loss)
    assert_trained_alike(train_pipeline(case, pipe, 3), want, whole=False)
    return [name for name, _ in pipe.named_parameters() if name in ("code.weight", "again.weight")]


def test_trains_on_two_processes_with_the_weight_on_one() -> None:
    held = results(run_ranks(2, trained_on))
    assert sorted(map(bool, held)) == [False, True]
