"""The same model through torch.distributed.pipelining: its tracer, with equal splits of the blocks.

As its documentation says to use it: `pipeline(module, mb_args, mb_kwargs, split_spec)`, a split
point before every n-th of the blocks that the model lists.
"""

from __future__ import annotations

import copy
import re
import time
from typing import Any

import torch
from torch import fx, nn
from torch.distributed.pipelining import SplitPoint, pipeline
from torch.testing import assert_close
from torch.utils import _pytree as pytree

from tests.zoo.checking import parts
from tests.zoo.entry import Entry, Inputs

# What its names have besides the model's own: the stage, and a number for each further call.
_STAGE = re.compile(r"^submod_(pp_)?\d+\.|@\d+")


def measure(entry: Entry, n_stages: int) -> dict[str, Any]:
    """Seconds of the split, and whether loss and gradients of one micro-batch are the model's."""
    torch.manual_seed(0)
    model, inputs = entry.build()
    inputs = parts(inputs)[0]
    try:
        start = time.process_time()
        spec = dict.fromkeys(split_points(model, n_stages), SplitPoint.BEGINNING)
        pipe = pipeline(copy.deepcopy(model), (), inputs, split_spec=spec)
        seconds = round(time.process_time() - start, 2)
    except Exception as error:  # a table of outcomes: every failure is one
        return {"outcome": f"no trace: {_first_line(error)}"}
    try:
        untied = _compare(entry, pipe, model, inputs)
        outcome = "equal" if pipe.num_stages == n_stages else f"equal, {pipe.num_stages} stages"
        outcome += ", unties weights" if untied else ""
    except AssertionError as error:
        outcome = f"differs: {_first_line(error)}"
    except Exception as error:
        outcome = f"fails: {_first_line(error)}"
    return {"seconds": seconds, "outcome": outcome}


def split_points(model: nn.Module, n_stages: int) -> list[str]:
    """The modules before which to cut: equal numbers of the blocks of the longest list."""
    lists = {
        name: module for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) >= n_stages
    }  # fmt: skip
    if lists:
        name = max(lists, key=lambda name: len(lists[name]))
        blocks = [f"{name}.{i}" if name else str(i) for i in range(len(lists[name]))]
    else:
        blocks = _modules_at_a_depth(model, n_stages)
    return [blocks[i * len(blocks) // n_stages] for i in range(1, n_stages)]


def _modules_at_a_depth(model: nn.Module, n_stages: int) -> list[str]:
    """All modules at the least depth that has enough of them."""
    names = [name for name, _ in model.named_modules() if name]
    for depth in range(max(name.count(".") for name in names) + 1):
        found = [name for name in names if name.count(".") == depth]
        if len(found) >= n_stages:
            return found
    raise ValueError(f"no depth has {n_stages} modules")


def _compare(entry: Entry, pipe: Any, model: nn.Module, inputs: Inputs) -> bool:
    """Whether the split has copies of tied weights, whose gradients the user has to add up.

    Raises:
        AssertionError: the loss or a gradient, copies added up, is not the model's.
    """
    output = model(**inputs)
    expected = _loss(entry, output)
    expected.backward()
    # What its pipe returns is a flat tuple, whatever the model's own container.
    leaves, tree = pytree.tree_flatten(output)
    made = pytree.tree_leaves(_run(pipe.split_gm, inputs))
    if len(made) != len(leaves):
        raise AssertionError(f"{len(made)} outputs, the model has {len(leaves)}")
    found = _loss(entry, pytree.tree_unflatten(made, tree))
    assert_close(found, expected)
    found.backward()
    got, untied = _gradients(pipe.split_gm, model)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and parameter.grad.any():
            if name not in got:
                raise AssertionError(f"no gradient of {name}")
            assert_close(got[name], parameter.grad, msg=lambda m, n=name: f"gradient of {n}: {m}")
    return untied


def _run(split: Any, inputs: Inputs) -> Any:
    """All stages in turn, joined by autograd; `pipe()` itself detaches between them."""
    names = [str(node.target) for node in split.graph.nodes if node.op == "placeholder"]
    flat = not set(names) <= set(inputs)
    values = pytree.tree_leaves(inputs) if flat else [inputs[name] for name in names]
    return fx.Interpreter(split).run(*values)


def _gradients(split: nn.Module, model: nn.Module) -> tuple[dict[str, torch.Tensor], bool]:
    """By the model's own names, copies of tied weights added up; whether there are such copies."""
    first = {id(p): name for name, p in model.named_parameters()}
    own = {n: first[id(p)] for n, p in model.named_parameters(remove_duplicate=False)}
    summed: dict[str, torch.Tensor] = {}
    held: dict[str, int] = {}
    for path, parameter in split.named_parameters():
        name = own.get(_STAGE.sub("", path), path)
        held[name] = held.get(name, 0) + 1
        if parameter.grad is not None:
            summed[name] = summed[name] + parameter.grad if name in summed else parameter.grad
    return summed, any(count > 1 for count in held.values())


def _loss(entry: Entry, output: Any) -> torch.Tensor:
    loss = entry.loss(output) if entry.loss else output["loss"]
    assert isinstance(loss, torch.Tensor)
    return loss


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:110]}"
