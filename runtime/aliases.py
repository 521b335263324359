"""An autograd edge of its own for every use of a weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode


class FreshAliases(TorchFunctionMode):
    """Hands every call a new alias of each weight that it is given.

    A weight used twice in one graph is one node, which both uses lead to; through an alias each
    leads there by a node of its own, where its gradient can be asked for alone. Numbers do not
    change.
    """

    def __init__(self, only: Collection[int] | None) -> None:
        """Aliases the weights whose ids are in `only`; every weight where it is None."""
        super().__init__()
        self.only = only
        self.uses: Counter[int] = Counter()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Calls `func` on aliases."""
        fresh = {name: self._fresh(value) for name, value in (kwargs or {}).items()}
        return func(*map(self._fresh, args), **fresh)

    @property
    def repeated(self) -> frozenset[int]:
        """The ids of the weights that were used more than once."""
        return frozenset(weight for weight, uses in self.uses.items() if uses > 1)

    def _fresh(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(self._fresh, value))
        if not isinstance(value, nn.Parameter) or not value.requires_grad:
            return value
        if self.only is not None and id(value) not in self.only:
            return value
        self.uses[id(value)] += 1
        return value.view_as(value)
