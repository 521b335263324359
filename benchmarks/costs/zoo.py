"""FLOPs and saved bytes of the test zoo: what is predicted against what torch counts and packs.

Both are of the traced graph, which torch runs op by op: where tracing changes what the model does
(a mask that eager attention does without, a custom backward that is spelt out), stages do the same.

python -m benchmarks.costs.zoo [model …]
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from stagecut.frontend import trace
from stagecut.ir.devices import device
from stagecut.ir.graph import Graph
from stagecut.passes import annotate, drop_dead, out_of_place
from stagecut.passes.saved import saved_storages
from tests.support.interpret import interpret, weights_of
from tests.zoo.table import ZOO


@dataclass(frozen=True, slots=True)
class Counts:
    forward_flops: float
    backward_flops: float
    saved_bytes: int


def predicted(graph: Graph) -> Counts:
    costs = [op.cost for op in graph.ops if op.cost is not None]
    return Counts(
        sum(cost.forward.flops for cost in costs),
        sum(cost.backward.flops for cost in costs),
        sum(storage.n_bytes for storage in saved_storages(graph)),
    )


def real(model: nn.Module, graph: Graph, constants: Any, leaves: list[Any]) -> Counts:
    packed: dict[int, int] = {}
    alive = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        packed[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)
        return tensor

    with FlopCounterMode(display=False) as forward, saved_tensors_hooks(pack, lambda t: t):
        out = interpret(graph, leaves, {**weights_of(model), **constants})
    own = (*model.parameters(), *model.buffers(), *constants.values(), *leaves)
    for tensor in own:
        if isinstance(tensor, torch.Tensor):
            packed.pop(tensor.untyped_storage().data_ptr(), None)
    roots = [t for t in out if isinstance(t, torch.Tensor) and t.requires_grad]
    with FlopCounterMode(display=False) as backward:
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    saved = sum(packed.values())
    return Counts(forward.get_total_flops(), backward.get_total_flops(), saved)


def _leaf(inputs: dict[str, Any], path: str) -> Any:
    """The input that a path such as `sparse['t0']` names."""
    return eval(path, {}, inputs)


def compare(name: str) -> str:
    torch.manual_seed(0)
    model, inputs = ZOO[name].build()
    model.train()
    try:
        traced = trace(model, (), inputs)
    except Exception as error:
        return f"{name:24} not traced: {str(error).splitlines()[0][:80]}"
    graph = annotate(drop_dead(out_of_place(traced.graph)), device("cpu"), {}, True)
    leaves = [_leaf(inputs, item.path) for item in graph.inputs]
    mine, theirs = predicted(graph), real(model, graph, traced.constants, leaves)
    pairs = (
        (mine.forward_flops, theirs.forward_flops),
        (mine.backward_flops, theirs.backward_flops),
        (mine.saved_bytes, theirs.saved_bytes),
    )
    shown = " ".join(f"{a:12,.0f} {b:12,.0f} {'=' if a == b else '*'}" for a, b in pairs)
    return "\n".join([f"{name:24} {shown}", *(f"    {note}" for note in graph.notes)])


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(f"{'':24} forward FLOPs (ours, torch's)   backward FLOPs   saved bytes (ours, packed)")
    for name in sys.argv[1:] or ZOO:
        print(compare(name), flush=True)


if __name__ == "__main__":
    main()
