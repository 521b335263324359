"""FLOPs of one kernel: torch's own formula table, and ours where it has none.

A multiplication and an addition are two FLOPs, as in `torch.utils.flop_counter`. Ours:

- attention on the CPU: the two matrix products forward, five backward, as torch counts the
  other attention kernels;
- recurrent layers: for each direction, layer and step, the products with the input and with the
  hidden state: 2 * batch * gates * hidden * (input + hidden); twice that backward;
- grouped products (experts): every row through one matrix, 2 * rows * inner * columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

Formula = Callable[[Sequence[Any], Any], int]


def kernel_flops(name: str, packet: Any, args: Sequence[Any], kwargs: Any, out: Any) -> int | None:
    """FLOPs of a kernel, or None where it is no matrix product, convolution or the like.

    `name` is the operator's, as `aten::mm`.
    """
    if name in _OURS:
        return _OURS[name](args, out)
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=out))
    return None


def _attention(args: Sequence[Any], out: Any) -> int:
    query, key, value = args[:3]
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))  # type: ignore[no-untyped-call]


def _attention_backward(args: Sequence[Any], out: Any) -> int:
    gradient, query, key, value = args[:4]
    shapes = (gradient.shape, query.shape, key.shape, value.shape)
    return int(sdpa_backward_flop_count(*shapes))  # type: ignore[no-untyped-call]


def _recurrent_layer(args: Sequence[Any], out: Any) -> int:
    """`mkldnn_rnn_layer(input [T, B, I], w_input [G, I], w_hidden [G, H], …)`, one direction."""
    return _recurrent(args[0], args[1], args[2])


def _recurrent_layer_backward(args: Sequence[Any], out: Any) -> int:
    return 2 * _recurrent_layer(args, out)


def _recurrent(data: torch.Tensor, w_input: torch.Tensor, w_hidden: torch.Tensor) -> int:
    steps_times_batch = math.prod(data.shape[:-1])
    return 2 * steps_times_batch * (w_input.numel() + w_hidden.numel())


def _grouped(args: Sequence[Any], out: Any) -> int:
    """`grouped_mm(rows [R, K], weights [E, K, N], offsets)`; both may be grouped the other way."""
    left, right = args[:2]
    columns = int(out.shape[-1])
    if left.dim() == 2 and right.dim() == 2:  # the weights' gradient: [K, R] x [R, N]
        return 2 * int(left.shape[0]) * int(left.shape[1]) * columns
    return 2 * int(left.numel()) * columns


_OURS: dict[str, Formula] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten::mkldnn_rnn_layer": _recurrent_layer,
    "aten::mkldnn_rnn_layer_backward": _recurrent_layer_backward,
    "aten::_grouped_mm": _grouped,
    "transformers::grouped_mm_fallback": _grouped,
}
