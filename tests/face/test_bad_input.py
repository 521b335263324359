"""Bad input gets an error that says what happened, where, and what to do."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stagecut
from stagecut.ir.errors import ArgumentError, InfeasibleError, PlanError, StagecutError, TraceError
from tests.cases.models import Chain, Masked, Trees

X = torch.zeros(2, 8)


class BranchOnData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if x.sum() > 0:
            x = -x
        return self.second(x)


def test_more_stages_than_ops() -> None:
    with pytest.raises(InfeasibleError, match=r"30 stages") as raised:
        stagecut.partition(Chain(2), 30, (X,))
    assert "4" in str(raised.value)


def test_no_example() -> None:
    with pytest.raises(ArgumentError, match=r"example_args=\(x,\)"):
        stagecut.partition(nn.Bilinear(2, 2, 2), 2)


def test_an_example_that_does_not_fit() -> None:
    with pytest.raises(ArgumentError, match=r"does not fit Masked.forward.*'mask'"):
        stagecut.partition(Masked(), 2, (X,))


@pytest.mark.parametrize("n_gpus", [0, -1, 2.5, True])
def test_a_number_of_devices_that_is_none(n_gpus: int) -> None:
    with pytest.raises(ArgumentError, match="n_gpus"):
        stagecut.partition(Chain(), n_gpus, (X,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "best"}, "method is 'best'; choose auto, .* or tree"),
        ({"schedule": "2f2b"}, "2f2b"),
        ({"cluster": "B9000"}, "B9000"),
        ({"n_microbatches": 0}, "n_microbatches is 0"),
        ({"n_microbatches": 2.5}, "n_microbatches is 2.5"),
        ({"memory_limit": "many"}, "memory_limit is 'many'"),
        ({"memory_limit": -1}, "above 0"),
        ({"memory_limit": True}, "memory_limit is True"),
        ({"time_limit": "long"}, "time_limit is 'long'"),
        ({"pins": {"steps.99": 0}}, "steps.99"),
        ({"pins": {"steps.0": 7}}, "7"),
        (
            {"pins": {"steps.0": 1.5, 2: 1, "steps.1": True}},
            "'steps.0': 1.5, 2: 1, 'steps.1': True",
        ),
        ({"pins": ["steps.0"]}, "pins is of type list"),
        ({"split": {"mask": None}}, "mask"),
        ({"optimizer": "adamz"}, "adamz"),
    ],
)
def test_options_that_are_none(options: dict[str, object], message: str) -> None:
    with pytest.raises(StagecutError, match=message):
        stagecut.partition(Chain(), 2, (X,), **options)  # type: ignore[arg-type]


def test_names_that_nothing_has_are_told_at_once_before_the_model_is_traced() -> None:
    class Untouched(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("traced")

    names = {"method": "best", "recompute": "some", "optimizer": "adamz", "tied": "merge"}
    with pytest.raises(ArgumentError) as error:
        stagecut.partition(Untouched(), 2, (X,), **names)  # type: ignore[arg-type]
    assert all(repr(name) in str(error.value) for name in names.values())


def test_a_memory_limit_that_nothing_meets() -> None:
    with pytest.raises(InfeasibleError) as raised:
        stagecut.partition(Chain(), 2, (X,), memory_limit=600)
    message = str(raised.value)
    assert "weights" in message
    assert "saved activations" in message
    assert "stage" in message


def test_a_memory_limit_is_kept() -> None:
    free = stagecut.partition(Chain(), 2, (X,))
    limit = max(stage.memory.total for stage in free.stages)
    kept = stagecut.partition(Chain(), 2, (X,), memory_limit=limit)
    assert all(stage.memory.total <= limit for stage in kept.stages)


def test_a_model_that_exceeds_the_devices_is_planned_and_says_so() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(60_000, 60_000, bias=False) for _ in range(8)))
        x = torch.zeros(2, 60_000)
    plan = stagecut.partition(model, 2, (x,), cluster="A100")
    assert not plan.fits
    assert "does not fit" in str(plan)


def test_training_data_of_another_kind() -> None:
    plan = stagecut.partition(Masked(), 2, (X, X))
    pipe = stagecut.pipeline(plan, Masked(), loss_fn=lambda out: out.mean(), runtime="local")
    for args, message in [
        ((torch.zeros(4, 8),), "mask is missing"),
        ((torch.zeros(4, 8), torch.zeros(3, 8)), "different numbers of rows: x 4, mask 3"),
        ((torch.zeros(4, 8), torch.zeros(4, 8).double()), "mask is torch.float64"),
        ((torch.zeros(4, 9), torch.zeros(4, 8)), r"x has shape \(1, 9\)"),
        ((torch.zeros(0, 8), torch.zeros(0, 8)), "the batch is empty"),
        ((torch.zeros(4, 8), None), "mask is None, traced as a tensor"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            pipe.train_step(*args)
    with pytest.raises(ArgumentError, match="labels was not in the example"):
        pipe.train_step(torch.zeros(4, 8), torch.zeros(4, 8), labels=X)


@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (lambda out, target: (out - target).square(), r"loss_fn returned \(2, 8\)"),
        (lambda out, target: (out - target).square().mean().detach(), "would train nothing"),
        (lambda out, target: 1.0, "loss_fn returned float"),
    ],
)
def test_a_loss_that_is_none(loss_fn: Any, message: str) -> None:
    plan = stagecut.partition(Chain(), 2, (X,), n_microbatches=2)
    pipe = stagecut.pipeline(plan, Chain(), loss_fn=loss_fn, runtime="local")
    with pytest.raises(ArgumentError, match=message):
        pipe.train_step(torch.zeros(4, 8), target=torch.zeros(4, 8))


def test_a_target_of_other_rows() -> None:
    plan = stagecut.partition(Chain(), 2, (X,), n_microbatches=2)
    pipe = stagecut.pipeline(plan, Chain(), loss_fn=nn.functional.mse_loss, runtime="local")
    with pytest.raises(ArgumentError, match="the target has 2 rows, the inputs have 4"):
        pipe.train_step(torch.zeros(4, 8), target=torch.zeros(2, 8))


class Similar(nn.Module):
    """Every row beside every other: nothing that micro-batches can be put together to."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.left(x) @ self.right(x).t()


def test_an_output_that_mixes_rows() -> None:
    model, x = Similar(), torch.randn(4, 8)
    plan = stagecut.partition(model, 2, (X,), n_microbatches=2)
    with pytest.raises(ArgumentError, match="mixes the rows of the batch"):
        stagecut.pipeline(plan, model, runtime="local")(x)
    pipe = stagecut.pipeline(plan, model, runtime="local", n_microbatches=1)
    torch.testing.assert_close(pipe(x), model(x))


def test_other_containers() -> None:
    model = Trees()
    plan = stagecut.partition(model, 2, ({"x": X, "scales": [X]},))
    pipe = stagecut.pipeline(plan, model, runtime="local")
    with pytest.raises(ArgumentError, match=r"missing: batch\['scales'\]"):
        pipe({"x": X})


def test_a_model_without_a_loss() -> None:
    model = Chain()
    pipe = stagecut.pipeline(stagecut.partition(model, 2, (X,)), model, runtime="local")
    with pytest.raises(StagecutError, match="loss_fn"):
        pipe.train_step(X)


def test_an_inference_plan_does_not_train() -> None:
    model = Chain()
    plan = stagecut.partition(model, 2, (X,), training=False)
    pipe = stagecut.pipeline(plan, model, runtime="local")
    with pytest.raises(ArgumentError, match="training=True"):
        pipe.train_step(X)
    with pytest.raises(ArgumentError, match="training=True"):
        pipe.train()


def test_files_that_are_no_plans(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no plan at"):
        stagecut.Plan.load(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(PlanError, match="not a plan"):
        stagecut.Plan.load(tmp_path / "x.json")
    with pytest.raises(PlanError, match="no export folder"):
        stagecut.pipeline(tmp_path, runtime="local")


def test_a_traced_branch_names_the_users_line() -> None:
    try:
        plan = stagecut.partition(BranchOnData(), 2, (X,))
    except TraceError as error:
        assert "test_bad_input.py:" in str(error)
        assert "x.sum() > 0" in str(error)
        assert len(str(error).splitlines()) < 15
    else:
        # A frontend that keeps the branch whole must say so.
        assert "export" in plan.data.frontend
        assert "test_bad_input.py" in plan.data.frontend


def test_what_is_no_model_or_no_example() -> None:
    with pytest.raises(ArgumentError, match="of type function; give an"):
        stagecut.partition(lambda x: x, 2, (X,))  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own imports warn
        compiled = torch.compile(Chain())
    with pytest.raises(ArgumentError, match="is compiled"):
        stagecut.partition(compiled, 2, (X,))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"of type ndarray.*torch.from_numpy"):
        stagecut.partition(Chain(), 2, X.numpy())  # type: ignore[arg-type]


def test_a_saved_plan_is_no_export_folder(tmp_path: Path) -> None:
    model = Chain()
    plan = stagecut.partition(model, 2, (X,))
    plan.save(tmp_path / "plan.json")
    with pytest.raises(PlanError, match=r"is a file; load a saved plan by Plan.load\("):
        stagecut.pipeline(tmp_path / "plan.json", model)
    plan.export(tmp_path / "stages", model)
    with pytest.raises(ArgumentError, match="have their own weights, so give no model"):
        stagecut.pipeline(tmp_path / "stages", model)


def test_an_input_that_goes_whole_is_told_from_the_batch() -> None:
    x, mask = torch.randn(12, 6, 8), torch.zeros(6, 6)
    for rows, declared in ((3, None), (3, {"mask": None}), (1, {"mask": None})):
        plan = stagecut.partition(Attends(), 2, (x[:rows], mask), split=declared)
        pipe = stagecut.pipeline(plan, (model := Attends()), loss_fn=torch.mean)
        torch.testing.assert_close(pipe.train_step(x, mask), model(x, mask).mean())
    pipe = stagecut.pipeline(stagecut.partition(Attends(), 2, (x[:1], mask)), Attends())
    with pytest.raises(ArgumentError, match=r'from mask along dimension 0.*split=\{"mask": None\}'):
        pipe(x, mask)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        return self.second(torch.softmax(h @ h.transpose(1, 2) + mask, -1) @ h)


def test_inputs_without_values() -> None:
    pipe = stagecut.pipeline(stagecut.partition(Chain(), 2, (X,)), Chain(), loss_fn=torch.mean)
    with pytest.raises(ArgumentError, match="x is on the meta device"):
        pipe.train_step(X.to("meta"))
