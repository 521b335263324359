"""Whether a trace that took the example's decisions gives what the model gives.

Only such traces are run: of others torch.export vouches for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.func import functional_call
from torch.testing import assert_close

from stagecut.frontend.example import Example
from stagecut.frontend.keeping import untouched
from stagecut.frontend.opaque import TARGET, call_of
from stagecut.frontend.running import one_row_more, run
from stagecut.frontend.trees import flatten, map_leaves
from stagecut.ir.errors import TraceError


def check_repeats(
    model: nn.Module, example: Example, program: torch.export.ExportedProgram, *, more: bool
) -> None:
    """Runs the trace and the model on the example, and if `more` with one row more.

    Raises:
        TraceError: their outputs differ.
    """
    for kwargs in (example.kwargs, one_row_more(example))[: 1 + more]:
        want = flatten(run(model, example, kwargs, {}))[0]
        got = _interpreted(model, program, kwargs)
        try:
            assert_close(got, want, equal_nan=True)
        except (AssertionError, TypeError) as error:
            raise TraceError(
                f"{type(model).__name__} cannot be traced with the decisions of the example: the "
                "trace gives other outputs than the model, so something else depends on data. Put "
                f"what decides into a module of its own. {str(error).splitlines()[0]}"
            ) from error


def _interpreted(
    model: nn.Module, program: torch.export.ExportedProgram, kwargs: Mapping[str, Any]
) -> list[Any]:
    """The leaves of the trace's output, computed with copies of the buffers."""
    kinds = torch.export.graph_signature.InputKind
    state = {**dict(model.named_parameters(remove_duplicate=False)), **program.constants}
    copies = {id(buffer): buffer.clone() for buffer in model.buffers()}
    named = model.named_buffers(remove_duplicate=False)
    buffers = {name: copies[id(buffer)] for name, buffer in named}
    leaves = iter(flatten(map_leaves(_copied, dict(kwargs)))[0])
    with untouched(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
        given = [
            next(leaves) if spec.kind is kinds.USER_INPUT else {**state, **buffers}[spec.target]
            for spec in program.graph_signature.input_specs
        ]
        return list(_Interpreter(model, buffers, program.graph_module).run(*given))


class _Interpreter(fx.Interpreter):
    """Runs a trace, opaque modules as they are."""

    def __init__(
        self, model: nn.Module, buffers: Mapping[str, torch.Tensor], graph_module: fx.GraphModule
    ) -> None:
        super().__init__(graph_module)
        self.model = model
        self.buffers = buffers

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if str(target) != TARGET:
            return super().call_function(target, args, kwargs)
        call = call_of(args[1])
        prefix = f"{call['path']}."
        made = functional_call(
            self.model.get_submodule(call["path"]),
            {n.removeprefix(prefix): b for n, b in self.buffers.items() if n.startswith(prefix)},
            tuple(_filled(item, args[0]) for item in call["args"]),
            {name: _filled(item, args[0]) for name, item in call["kwargs"].items()},
        )
        return list(made) if call["sequence"] else [made]


def _filled(item: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(item, dict):
        return tensors[item["tensor"]]
    return [_filled(i, tensors) for i in item] if isinstance(item, list) else item


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf
