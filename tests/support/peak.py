"""The peak of live tensor memory on the CPU, by following every storage through dispatch.

A storage counts from the kernel that made it (or from `hold`) until nothing references it. What
C++ allocates inside one kernel is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class PeakTracker(TorchDispatchMode):
    """Follows the storages made inside, and those it is told to hold."""

    def __init__(self, ignored: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.ignored = {t.untyped_storage().data_ptr() for t in ignored}
        self.peak = 0

    def hold(self, tensors: Iterable[torch.Tensor]) -> None:
        """Counts tensors that were made before."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            known = storage._cdata in self.storages or storage.data_ptr() in self.ignored
            if not known and storage.nbytes():
                self.storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, sum(n for _, n in self.storages.values()))

    def live(self) -> int:
        """Bytes alive now."""
        for key in [key for key, (weak, _) in self.storages.items() if weak.expired()]:
            del self.storages[key]
        return sum(n for _, n in self.storages.values())

    def reset(self) -> None:
        """Forgets the peak so far."""
        self.peak = self.live()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.live()
        self.hold(t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor))
        return out
