"""Watches the kernels below autograd: their work, and the storages they leave alive."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from stagecut.ir.cost import Work
from stagecut.ir.device import Device
from stagecut.passes.fake import storage_bytes, storage_key
from stagecut.passes.kernels import Kernel, kernel_of
from stagecut.passes.recurrent import hidden_bytes
from stagecut.passes.roofline import kernel_seconds


class KernelCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums the work of every kernel started inside, on `device`."""

    def __init__(self, device: Device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.work = Work()
        self.alive = _Alive()
        self.hidden_bytes: list[int] = []
        """What kernels keep for their backward without it showing in a fake result."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs the kernel and counts it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func is torch.ops.prim.device.default:  # a fake tensor asked for its device
            return out
        kernel = kernel_of(func, args, kwargs, out)
        if kernel is not None:
            self.work = self.work + self._work(kernel)
            self.alive.made(out, args)
            if n_bytes := hidden_bytes(func._schema.name, args):
                self.hidden_bytes.append(n_bytes)
        return out

    def _work(self, kernel: Kernel) -> Work:
        return Work(
            flops=kernel.flops,
            elementwise_flops=kernel.elementwise_flops,
            bytes=kernel.n_bytes,
            kernels=1,
            seconds=kernel_seconds(self.device, kernel),
        )


@dataclass(slots=True)
class _Alive:
    """The storages that kernels made and that something still holds."""

    storages: dict[int, tuple[StorageWeakRef, int]] = field(default_factory=dict)
    peak_bytes: int = 0

    def made(self, out: Any, args: Any) -> None:
        """Takes in a kernel's results, and the peak as it ran."""
        expired = [key for key, (weak, _) in self.storages.items() if weak.expired()]  # type: ignore[no-untyped-call]
        for key in expired:
            del self.storages[key]
        given = {storage_key(t) for t in _flat(args)}
        for tensor in _flat(out):
            key = storage_key(tensor)
            if key not in given:
                weak = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
                self.storages[key] = (weak, storage_bytes(tensor))
        self.peak_bytes = max(self.peak_bytes, sum(n for _, n in self.storages.values()))


def _flat(items: Any) -> Iterable[torch.Tensor]:
    if isinstance(items, torch.Tensor):
        yield items
    elif isinstance(items, list | tuple):
        for item in items:
            yield from _flat(item)
