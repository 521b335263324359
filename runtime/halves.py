"""A backward in two halves: gradients of what was received now, gradients of weights later.

    root ──▶ tanh ──▶ addmm ──▶ tanh ──▶ addmm ──▶ leaf        towards a leaf: the trunk
                        │                  │
                        ▼                  ▼
                     weight             weight                 everything else: branches

The trunk is every node that leads to a leaf. The input half runs the trunk towards the leaves alone
and keeps the gradients that reach each node of it where a branch begins. The weight half starts
again at each of these nodes, with the gradients kept, towards its branches alone. autograd asks a
node only for the gradients that somebody wants, so that the input half multiplies for no weight and
the weight half repeats nothing. Roots outside the trunk wait for the weight half altogether; a
stage that received nothing with a gradient has no trunk, and its input half does nothing.

Some branches are entered in the input half already, and go on from there in the other:

- those of nodes that compute all their gradients at once, whatever is asked for (`INDIVISIBLE`:
  fused recurrent layers and attention; Python functions, which may);
- all of a stage that recomputes some of its forward: every restart would recompute it once more;
- those that share weights with one that leads into another's beginning (a GRU's recurrent bias:
  used before the state has a gradient, and after): they run to their weights at once;
- those that a second node enters as well: from the first of them, autograd would find a second way,
  through the trunk. `FreshAliases` gives every use of a weight an edge of its own, which leaves
  values that a stage computes beside its inputs and uses at several depths.

Restarting inside the graph follows Qi et al., "Zero Bubble Pipeline Parallelism", 2023, section 3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Root = tuple[GradientEdge, torch.Tensor]
"""Where a backward starts, with the gradient there."""
Edge = tuple[Node, int]
"""A node, and which of the gradients that it takes."""

INDIVISIBLE = (
    "MkldnnRnnLayer",
    "MiopenRnn",
    "ThnnFused",
    "ScaledDotProduct",
    "PreluKernel",
    "WeightNormInterface",
)
"""Beginnings of the names of nodes whose kernels take no mask of wanted gradients."""


@dataclass(slots=True)
class Restart:
    """A node of the trunk that the weight half runs again, towards its branches."""

    starts: list[GradientEdge]
    """Where gradients reach the node."""
    ends: list[GradientEdge]
    """Where its branches begin or, where nothing else leads there, the weights they end in."""
    accumulates: bool
    """Whether `ends` are weights."""
    seeds: tuple[torch.Tensor | None, ...] = ()
    """The gradients that reached the node, one a start; None where none did."""


@dataclass(slots=True)
class WeightHalf:
    """What is left of a micro-batch's backward."""

    restarts: list[Restart] = field(default_factory=list)
    rest: list[Root] = field(default_factory=list)
    """Starts outside the trunk; the restarts add to them."""

    def run(self) -> None:
        """Adds to the gradients of the weights; once."""
        for restart in self.restarts:
            known = _present(restart.starts, restart.seeds)
            if known:
                self._restart(restart, known)
        if self.rest:
            torch.autograd.backward(*_columns(self.rest))

    def _restart(self, restart: Restart, known: list[Root]) -> None:
        starts, seeds = _columns(known)
        if restart.accumulates:
            torch.autograd.backward(starts, seeds, inputs=restart.ends)
        else:
            found = torch.autograd.grad(starts, restart.ends, seeds, allow_unused=True)
            self.rest += _present(restart.ends, found)


def input_half(
    roots: Sequence[Root], leaves: Sequence[torch.Tensor], *, restarts: bool = True
) -> tuple[tuple[torch.Tensor | None, ...], WeightHalf]:
    """Computes the gradients of the leaves.

    Args:
        roots: The stage's results, or its loss, with their gradients.
        leaves: What the stage received and sends gradients for.
        restarts: Whether the weight half may run nodes of the trunk again.

    Returns:
        The gradient of each leaf, None where none reaches it; and what is left to do.
    """
    ends = [get_gradient_edge(leaf) for leaf in leaves]
    graph = _Graph([edge for edge, _ in roots], {edge.node for edge in ends})
    half = WeightHalf(rest=[root for root in roots if root[0].node not in graph.trunk])
    inside = [root for root in roots if root[0].node in graph.trunk]
    if not inside:
        return (None,) * len(leaves), half
    early, half.restarts = graph.entries(restarts)
    wanted = [*ends, *early, *(start for restart in half.restarts for start in restart.starts)]
    starts, seeds = _columns(inside)
    found = torch.autograd.grad(starts, wanted, seeds, retain_graph=True, allow_unused=True)
    n, at = len(ends), len(ends) + len(early)
    half.rest += _present(early, found[n:at])
    for restart in half.restarts:
        restart.seeds = found[at : at + len(restart.starts)]
        at += len(restart.starts)
    return found[:n], half


class _Graph:
    """The autograd graph behind some roots, each node after all it was made from."""

    def __init__(self, roots: Iterable[GradientEdge], leaves: Collection[Node]) -> None:
        self.edges: dict[Node, list[Edge]] = {}
        """What each node passes gradients to; in the order of the walk, leaves first."""
        self.arrivals: dict[Node, dict[int, None]] = {}
        """Which of its gradients each node is given."""
        self.parents: dict[Node, int] = {}
        """How many nodes or roots pass gradients to each."""
        starts = [(edge.node, edge.output_nr) for edge in roots]
        self._walk([node for node, _ in starts])
        for start in starts:
            self._arrive([start])
        for edges in self.edges.values():
            self._arrive(edges)
        self.trunk: set[Node] = set()
        for node, edges in self.edges.items():
            if node in leaves or any(after in self.trunk for after, _ in edges):
                self.trunk.add(node)

    def _walk(self, nodes: list[Node]) -> None:
        stack, entered = nodes, {}
        while stack:
            node = stack[-1]
            if node not in entered:
                entered[node] = [
                    (after, i) for after, i in node.next_functions if after is not None
                ]
                stack += [after for after, _ in entered[node] if after not in entered]
            else:
                stack.pop()
                self.edges.setdefault(node, entered[node])

    def _arrive(self, edges: Iterable[Edge]) -> None:
        for node in dict.fromkeys(node for node, _ in edges):
            self.parents[node] = self.parents.get(node, 0) + 1
        for node, i in edges:
            self.arrivals.setdefault(node, {})[i] = None

    def entries(self, restarts: bool) -> tuple[list[GradientEdge], list[Restart]]:
        """The branches entered in the input half, and the nodes where the others begin."""
        whole, weights = self._nested()
        apart = self.trunk | whole
        early: dict[Edge, None] = {(weight, 0): None for weight in weights}
        found = []
        for node in reversed(self.edges):
            branches = [edge for edge in self.edges[node] if edge[0] not in apart]
            if node not in self.trunk or not branches:
                continue
            shared = any(self.parents[after] > 1 for after, _ in branches)
            if not restarts or shared or _is_indivisible(node):
                early |= dict.fromkeys(branches)
            else:
                found.append(self._restart(node, dict.fromkeys(branches)))
        return [GradientEdge(*edge) for edge in early], found

    def _nested(self) -> tuple[set[Node], dict[Node, None]]:
        """Where branches begin that share weights with one that leads into another's beginning.

        The gradient at an inner beginning would hold what came through the outer one, which would
        come again from there; so such branches run to their weights at once, the second result.
        """
        begins = {
            after: None
            for node in self.edges if node in self.trunk
            for after, _ in self.edges[node] if after not in self.trunk
        }  # fmt: skip
        below: set[Node] = set()
        for node in reversed(self.edges):
            if node in below or node in begins:
                below.update(after for after, _ in self.edges[node])
        weights = dict.fromkeys(w for node in begins if node in below for w in self._ends(node))
        whole: set[Node] = set()
        while weights:
            more = [
                node
                for node in begins
                if node not in whole and not weights.keys().isdisjoint(self._ends(node))
            ]
            if not more:
                break
            whole.update(more)
            weights |= dict.fromkeys(w for node in more for w in self._ends(node))
        return whole, weights

    def _ends(self, start: Node) -> list[Node]:
        """The weights that a branch leads to."""
        stack, seen = [start], {start}
        while stack:
            after = {n for n, _ in self.edges[stack.pop()]} - seen
            seen |= after
            stack += after
        return [node for node in self.edges if node in seen and not self.edges[node]]

    def _restart(self, node: Node, branches: Iterable[Edge]) -> Restart:
        starts = [GradientEdge(node, i) for i in self.arrivals[node]]
        weights = self._own_weights(after for after, _ in branches)
        if weights is None:
            return Restart(starts, [GradientEdge(*edge) for edge in branches], False)
        return Restart(starts, [GradientEdge(weight, 0) for weight in weights], True)

    def _own_weights(self, nodes: Iterable[Node]) -> list[Node] | None:
        """The weights at the ends of branches; None where a second way leads into them."""
        stack, weights = list(nodes), []
        while stack:
            node = stack.pop()
            if self.parents[node] > 1:
                return None
            if node.name().endswith("AccumulateGrad"):
                weights.append(node)
            stack += dict.fromkeys(after for after, _ in self.edges[node])
        return weights


def _is_indivisible(node: Node) -> bool:
    return node.name().startswith(INDIVISIBLE) or isinstance(node, BackwardCFunction)


def _present(edges: Sequence[GradientEdge], gradients: Sequence[torch.Tensor | None]) -> list[Root]:
    return [(e, g) for e, g in zip(edges, gradients, strict=True) if g is not None]


def _columns(roots: Sequence[Root]) -> tuple[list[GradientEdge], list[torch.Tensor]]:
    return [edge for edge, _ in roots], [gradient for _, gradient in roots]
