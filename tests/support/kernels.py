"""Which kernels some code starts, below autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class _Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not str(func).startswith("prim.device"):
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def kernels_of(code: Callable[[], Any]) -> list[str]:
    """The names of the kernels, in order."""
    with _Names() as mode:
        code()
    return mode.names
