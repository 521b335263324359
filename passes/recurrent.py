"""The workspace that oneDNN's recurrent kernel keeps for its backward; fake kernels make it empty.

    T steps, B rows, I inputs, H hidden, G = 4 H gates; one direction of one layer, float32

Sections, each rounded up to a page: gates T B ld(G); hidden T B ld(H); three of states with
2 (T + 1) B ld(max(I, H)); two with 2 (T + 1) B H. `ld` is oneDNN's leading dimension: a multiple
of 64 bytes, one more where it would be a multiple of 256 elements. The formula was fitted to the
kernel of torch 2.13 and `tests/passes/test_recurrent.py` holds it against the kernel. For GPUs it
stands in for cuDNN's reserve, whose size cannot be asked without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_PAGE_BYTES = 4096
_ELEMENT_BYTES = 4
_LINE_ELEMENTS = 16


def hidden_bytes(name: str, args: Sequence[Any]) -> int:
    """Bytes that a kernel keeps for its backward beyond what its fake results show."""
    if name != "aten::mkldnn_rnn_layer" or not _trains(args):
        return 0
    steps, rows, inputs = (int(n) for n in args[0].shape)
    return lstm_workspace_bytes(steps, rows, inputs, int(args[2].shape[1]))


def lstm_workspace_bytes(steps: int, rows: int, inputs: int, hidden: int) -> int:
    """oneDNN's workspace of one direction of one LSTM layer in training."""
    states = 2 * (steps + 1) * rows
    sections = (
        steps * rows * _leading(4 * hidden),
        steps * rows * _leading(hidden),
        *(3 * (states * _leading(max(inputs, hidden)),)),
        *(2 * (states * hidden,)),
    )
    return sum(_round_up(n * _ELEMENT_BYTES, _PAGE_BYTES) for n in sections)


def _trains(args: Sequence[Any]) -> bool:
    """The kernel's last argument, `train`."""
    return bool(args[15])


def _leading(elements: int) -> int:
    padded = _round_up(elements, _LINE_ELEMENTS)
    return padded + _LINE_ELEMENTS if padded % 256 == 0 else padded


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
