"""What a user does with a pipeline besides training: inference, state, gradients' norm, modes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import stagecut
from stagecut.ir.errors import PlanError
from tests.cases.models import Chain, Norms, Tied, Trees
from tests.cases.table import TABLE, built
from tests.support.ranks import results, run_ranks

X = torch.randn(2, 8)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = nn.functional.dropout(torch.tanh(step(x)), 0.5, self.training)
        return x


@pytest.mark.parametrize("name", ["chain", "trees", "strides", "unet", "bert", "vit", "recurrent"])
def test_inference_is_exact(name: str) -> None:
    case = built(name)
    plan = stagecut.partition(case.model, 3, case.args, case.kwargs, training=False)
    pipe = stagecut.pipeline(plan, case.model, runtime="local", n_microbatches=1)
    with torch.no_grad():
        want = case.model.eval()(*case.args, **case.kwargs)
    got = pipe(*case.args, **case.kwargs)
    assert type(got) is type(want)
    torch.testing.assert_close(
        torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want), rtol=0, atol=0
    )


def test_the_models_own_container_comes_back() -> None:
    model = Trees()
    batch = {"x": torch.randn(4, 8), "scales": [torch.randn(4, 8)]}
    plan = stagecut.partition(model, 2, ({"x": X, "scales": [X]},))
    got, want = stagecut.pipeline(plan, model, runtime="local")(batch), model(batch)
    assert list(got) == list(want)
    assert got["none"] is None
    assert isinstance(got["more"], tuple)
    assert got["more"][1] == [None, 3]
    torch.testing.assert_close(got["logits"], want["logits"])


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 9])
def test_any_number_of_rows(rows: int) -> None:
    model = Chain()
    pipe = stagecut.pipeline(stagecut.partition(model, 3, (X,)), model, runtime="local")
    x = torch.randn(rows, 8)
    torch.testing.assert_close(pipe(x), model(x))


def test_an_example_of_one_row() -> None:
    model = Chain()
    plan = stagecut.partition(model, 3, (torch.randn(1, 8),))
    assert plan.data.graph.inputs[0].value is not None
    x = torch.randn(6, 8)
    torch.testing.assert_close(stagecut.pipeline(plan, model, runtime="local")(x), model(x))


def test_draws_do_not_depend_on_the_number_of_stages() -> None:
    losses, norms = [], []
    for n_stages in (1, 2, 4):
        torch.manual_seed(0)
        model, x = Dropping(), torch.randn(8, 8)
        plan = stagecut.partition(model, n_stages, (X,), n_microbatches=4)
        pipe = stagecut.pipeline(plan, model, loss_fn=lambda o: o.square().mean(), runtime="local")
        torch.manual_seed(7)
        losses.append([float(pipe.train_step(x)) for _ in range(2)])
        norms.append(float(pipe.clip_grad_norm_(1e9)))
        after = torch.rand(())
    assert losses[0] == losses[1] == losses[2]
    assert losses[0][0] != losses[0][1]
    torch.testing.assert_close(norms[1:], norms[:1] * 2)
    # The user's generator moved on by one draw a step, whatever the model drew.
    torch.manual_seed(7)
    torch.randint(2**31, ())
    torch.randint(2**31, ())
    assert after == torch.rand(())


def test_eval_switches_dropout_and_batch_norm_off() -> None:
    for model, x in ((Dropping(), torch.randn(4, 8)), (Norms(), torch.randn(4, 3, 6, 6))):
        plan = stagecut.partition(model, 2, (x[:2],))
        pipe = stagecut.pipeline(plan, model, loss_fn=lambda o: o.square().mean(), runtime="local")
        pipe.train_step(x)
        pipe.eval()
        torch.testing.assert_close(pipe(x), copy.deepcopy(model).eval()(x))
        pipe.train()
        pipe.train_step(x)


def test_state_dict_goes_both_ways() -> None:
    model, other = Tied(), Tied()
    plan = stagecut.partition(model, 3, (torch.zeros(2, 5, dtype=torch.long),))
    pipe = stagecut.pipeline(plan, model, runtime="local")
    assert pipe.state_dict().keys() == model.state_dict().keys()
    pipe.load_state_dict(other.state_dict())
    for name, value in other.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    other.load_state_dict(pipe.state_dict(), strict=True)
    with pytest.raises(PlanError, match=r"head.weight is missing"):
        pipe.load_state_dict({k: v for k, v in other.state_dict().items() if k != "head.weight"})
    with pytest.raises(PlanError, match=r"nonsense is not in the model"):
        pipe.load_state_dict({**other.state_dict(), "nonsense": torch.zeros(1)})


def test_parameters_are_the_users_own() -> None:
    model = Chain()
    pipe = stagecut.pipeline(stagecut.partition(model, 2, (X,)), model, runtime="local")
    mine = dict(model.named_parameters())
    assert {n: id(p) for n, p in pipe.named_parameters()} == {n: id(p) for n, p in mine.items()}


def test_the_model_is_left_as_it_was() -> None:
    model = Norms()
    model.net[1].eval()
    before = [module.training for module in model.modules()]
    state = copy.deepcopy(model.state_dict())
    stagecut.partition(model, 2, (torch.randn(2, 3, 6, 6),))
    stagecut.partition(model, 2, (torch.randn(2, 3, 6, 6),), training=False)
    assert [module.training for module in model.modules()] == before
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_the_norm_is_of_the_whole_pipeline() -> None:
    case = built("tied")
    want = copy.deepcopy(case.model)
    case.loss(want(*case.args)).backward()  # type: ignore[misc]
    expected = nn.utils.clip_grad_norm_(want.parameters(), 0.01)
    plan = stagecut.partition(case.model, 3, (case.args[0][:2],), n_microbatches=1)
    pipe = stagecut.pipeline(plan, case.model, loss_fn=case.loss, runtime="local")
    pipe.train_step(*case.args)
    torch.testing.assert_close(pipe.clip_grad_norm_(0.01), expected)
    for name, parameter in want.named_parameters():
        torch.testing.assert_close(dict(pipe.named_parameters())[name].grad, parameter.grad)


def use_everywhere(rank: int) -> dict[str, object]:
    """Inference, norm and dropout on two processes; what each rank saw."""
    seen: dict[str, object] = {}
    case = built("trees")
    plan = stagecut.partition(case.model, 2, case.args)
    pipe = stagecut.pipeline(plan, case.model)
    got, want = pipe(*case.args), case.model(*case.args)
    torch.testing.assert_close(got["logits"], want["logits"])
    torch.testing.assert_close(got["more"][0], want["more"][0])
    assert got["more"][1] == [None, 3]

    case = built("tied")
    reference = copy.deepcopy(case.model)
    case.loss(reference(*case.args)).backward()  # type: ignore[misc]
    expected = nn.utils.clip_grad_norm_(reference.parameters(), 0.01)
    plan = stagecut.partition(case.model, 2, (case.args[0][:2],), n_microbatches=1)
    pipe = stagecut.pipeline(plan, case.model, loss_fn=case.loss)
    pipe.train_step(*case.args)
    torch.testing.assert_close(pipe.clip_grad_norm_(0.01), expected)

    torch.manual_seed(rank)  # ranks that differ in their generators still draw alike
    model = Dropping()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.1)
    plan = stagecut.partition(model, 2, (X,), n_microbatches=2)
    pipe = stagecut.pipeline(plan, model, loss_fn=lambda out: out.square().mean())
    torch.manual_seed(7 + rank)
    seen["loss"] = float(pipe.train_step(torch.ones(4, 8)))
    return seen


def test_on_two_processes() -> None:
    first, second = results(run_ranks(2, use_everywhere))
    assert first == second
    model = Dropping()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.1)
    plan = stagecut.partition(model, 1, (X,), n_microbatches=2)
    pipe = stagecut.pipeline(plan, model, loss_fn=lambda o: o.square().mean(), runtime="local")
    torch.manual_seed(7)
    assert first["loss"] == float(pipe.train_step(torch.ones(4, 8)))


def test_the_table_covers_what_inference_uses() -> None:
    assert {"trees", "tied"} <= set(TABLE)
