"""What one kernel does: FLOPs, elements computed, bytes read and written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stagecut.ir.device import OpClass
from stagecut.passes.formulas import kernel_flops

# Allocation, bookkeeping and views whose schema does not say that they are views.
_FREE = frozenset(
    {
        "_unsafe_view", "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty",
        "new_empty_strided", "device", "sym_size", "sym_stride", "sym_numel",
        "sym_storage_offset", "size", "stride", "numel", "is_contiguous", "_reshape_alias",
        "lift_fresh", "lift", "detach", "detach_", "alias", "resize_", "set_", "_version",
        "record_stream", "is_same_size", "_has_compatible_shallow_copy_type", "squeeze_",
        "unsqueeze_", "transpose_", "t_", "as_strided_", "_assert_tensor_metadata",
        "_assert_async",
    }
)  # fmt: skip
# The first argument is only looked at for its shape, or only written.
_FIRST_NOT_READ = frozenset(
    {
        "copy_", "fill_", "zero_", "bernoulli_", "uniform_", "normal_", "exponential_", "random_",
        "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like",
        "new_zeros", "new_ones", "new_full",
    }
)  # fmt: skip
# Reads only the elements it writes, however large the source is.
_GATHERS = frozenset(
    {
        "embedding", "index_select", "gather", "index", "take", "_embedding_bag",
        "select_scatter",
    }
)  # fmt: skip
# Moves data and computes nothing.
_MOVES = frozenset(
    {
        "clone", "_to_copy", "copy_", "fill_", "zero_", "cat", "stack", "embedding",
        "index_select", "gather", "index", "take", "zeros", "ones", "full", "zeros_like",
        "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "scalar_tensor",
        "slice_backward", "select_backward", "constant_pad_nd", "repeat", "contiguous",
        "slice_scatter", "select_scatter", "roll", "flip",
    }
)  # fmt: skip

_CLASSES: tuple[tuple[OpClass, tuple[str, ...]], ...] = (
    ("attention", ("attention",)),
    ("convolution", ("conv",)),
    ("recurrent", ("rnn", "lstm", "gru")),
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel's work."""

    flops: int
    """Matrix products, convolutions, attention, recurrences."""
    elementwise_flops: int
    """One an element read or written, whichever are more; 0 where `flops` counts it."""
    n_bytes: int
    """Read and written."""
    dtype: str
    """Of its first tensor: the rate at which `flops` run."""
    op_class: OpClass = "matrix"
    """What its FLOPs are of."""


def kernel_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Kernel | None:
    """What a call of an operator below autograd does; None where no kernel starts."""
    name = func._schema.name
    short = name.split("::")[1]
    if func.is_view or short in _FREE:
        return None
    read = list(_tensors([*args, *kwargs.values()]))
    if short in _FIRST_NOT_READ and args and isinstance(args[0], torch.Tensor):
        read = read[1:]
    written = _written(func, args, kwargs, out)
    written_bytes = sum(map(_touched_bytes, written))
    if short in _GATHERS:
        read_bytes = written_bytes + sum(map(_touched_bytes, read[1:]))
    else:
        read_bytes = sum(map(_touched_bytes, read))
    dtype = next((t.dtype for t in (*read, *written)), torch.float32)
    flops = kernel_flops(name, func._overloadpacket, args, kwargs, out)
    elements = 0 if flops is not None or short in _MOVES else _largest([*read, *written])
    return Kernel(flops or 0, elements, read_bytes + written_bytes, str(dtype)[6:], _class(short))


def _class(short: str) -> OpClass:
    """The class of a kernel with FLOPs, by its operator's name."""
    for op_class, words in _CLASSES:
        if any(word in short for word in words):
            return op_class
    return "matrix"


def _tensors(items: Any) -> Iterator[torch.Tensor]:
    if isinstance(items, torch.Tensor):
        yield items
    elif isinstance(items, list | tuple):
        for item in items:
            yield from _tensors(item)


def _written(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
) -> list[torch.Tensor]:
    schema = func._schema
    named = zip((a.name for a in schema.arguments), args, strict=False)
    given = {**dict(named), **kwargs}
    writes = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]
    mutated = [t for name in writes for t in _tensors(given.get(name))]
    known = {id(t) for t in mutated}
    return [*mutated, *(t for t in _tensors(out) if id(t) not in known)]


def _touched_bytes(tensor: torch.Tensor) -> int:
    return _touched(tensor) * tensor.element_size()


def _touched(tensor: torch.Tensor) -> int:
    """Distinct elements: a dimension of stride 0 repeats the same ones."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= 1 if stride == 0 and size > 0 else int(size)
    return elements


def _largest(tensors: Sequence[torch.Tensor]) -> int:
    return max((tensor.numel() for tensor in tensors), default=0)
