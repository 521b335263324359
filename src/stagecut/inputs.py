"""What the user passes to a step, in the order in which the trace met it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stagecut.frontend import trees
from stagecut.frontend.example import shown_value
from stagecut.ir.errors import ArgumentError
from stagecut.ir.graph import Graph


class Signature:
    """Binds a step's inputs to a graph, and puts its outputs into the model's own container."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.inputs = trees.load_tree(graph.input_tree)
        self.outputs = trees.load_tree(graph.output_tree)
        self.paths = [item.path for item in graph.inputs]
        self.names = trees.keywords(graph.input_tree)
        self.constants = {item.path: item.constant for item in graph.inputs if item.value is None}

    def leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of a step's inputs, one an input of the graph.

        Raises:
            ArgumentError: inputs are missing, unknown, given twice, or nested differently.
        """
        given = self._by_name(args, kwargs)
        # What was constant in the trace need not be repeated: labels=None, use_cache=False.
        full = {**{n: self.constants[n] for n in self.names if n in self.constants}, **given}
        missing = [name for name in self.names if name not in full]
        unknown = [n for n in full if n not in self.names and full[n] is not None]
        faults = [f"{name} is missing" for name in missing]
        faults += [f"{name} was not in the example that was traced" for name in unknown]
        if faults:
            raise ArgumentError(
                f"{self.graph.name} was planned with the inputs {', '.join(self.names)}: "
                + "; ".join(faults)
            )
        leaves = trees.keyword_leaves(self.inputs, self.paths, full)
        self._check_tensors(leaves)
        return leaves

    def lacks(self, name: str, args: Sequence[Any]) -> bool:
        """Whether the model takes a tensor of this name that is not among the positional inputs."""
        takes = name in self.names and name not in self.constants
        return takes and name not in self.graph.parameters[: len(args)]

    def container(self, leaves: Sequence[Any]) -> Any:
        """The model's output around its leaves."""
        return trees.unflatten(leaves, self.outputs)

    def _check_tensors(self, leaves: Sequence[Any]) -> None:
        faults = [
            f"{item.path} is {shown_value(leaf)}, traced as a tensor {item.value.type}"
            for item, leaf in zip(self.graph.inputs, leaves, strict=True)
            if item.value is not None and not isinstance(leaf, torch.Tensor)
        ]
        if faults:
            raise ArgumentError("the inputs differ from the example:\n  " + "\n  ".join(faults))

    def _by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        positions = self.graph.parameters
        if len(args) > len(positions):
            raise ArgumentError(
                f"{self.graph.name} takes {len(positions)} positional inputs "
                f"({', '.join(positions)}), not {len(args)}"
            )
        named = dict(zip(positions, args, strict=False))
        if twice := sorted(set(named) & set(kwargs)):
            raise ArgumentError(f"{', '.join(twice)} given both by position and by keyword")
        return {**named, **kwargs}
