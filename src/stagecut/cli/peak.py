"""The peak memory of a process during a block: of the GPU by its allocator, of the CPU by storage.

On the CPU a storage counts from the kernel that made it until nothing refers to it; what a kernel
allocates inside itself is not seen. Watching costs time, so that a watched step is not timed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Watched(TorchDispatchMode):
    """Follows the tensors made inside it, and those that it is given."""

    def __init__(self, held: Iterable[torch.Tensor], ignored: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ignored = {t.untyped_storage()._cdata for t in ignored}
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self._most = 0
        self._add(held)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    @property
    def peak_bytes(self) -> int:
        """The most held at once."""
        return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else self._most

    def _add(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._ignored and storage._cdata not in self._alive:
                self._alive[storage._cdata] = (_weak(storage), storage.nbytes())
        self._most = max(self._most, sum(n_bytes for _, n_bytes in self._alive.values()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for key in [key for key, (weak, _) in self._alive.items() if weak.expired()]:  # type: ignore[no-untyped-call]
            del self._alive[key]
        self._add(leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor))
        return made


def _weak(storage: torch.UntypedStorage) -> StorageWeakRef:
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]
