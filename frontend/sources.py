"""Where an op comes from: the module path the user knows, and the user's own line."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from pathlib import Path
from types import FrameType

import torch
from torch import fx

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = str(Path(torch.__file__).parent)


def scope_of(node: fx.Node) -> str:
    """The path of the innermost module that ran the op: `transformer.h.3.mlp`."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    return "" if path.startswith("_empty_nn_module_stack") else path.split("@")[0]


def source_of(node: fx.Node) -> str:
    """The innermost line outside torch that led to the op, as `file:line`."""
    return _innermost(node.meta.get("stack_trace") or "")


@lru_cache(maxsize=4096)
def _innermost(stack_trace: str) -> str:
    frames = _FRAME.findall(stack_trace)
    outside = [(f, line) for f, line in frames if is_users(f)]
    return "" if not outside else f"{short_path(outside[-1][0])}:{outside[-1][1]}"


def users_place(frame: FrameType | None) -> tuple[str, int]:
    """The file and line outside torch that a frame was called from, innermost first."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "the model", 0


def users_line(frame: FrameType | None) -> str:
    """The same as `file:line`."""
    file, line = users_place(frame)
    return f"{short_path(file)}:{line}"


def is_users(file: str) -> bool:
    """Whether a file is neither torch's nor Stagecut's nor the interpreter's."""
    ours = str(Path(__file__).parent)
    return not file.startswith((_TORCH, ours, "<", "torch/"))


@lru_cache(maxsize=1024)
def short_path(file: str) -> str:
    """The path as imports see it: without the entry of `sys.path` it was found under."""
    roots = [str(Path(root or ".").resolve()) for root in sys.path]
    under = [root for root in roots if file.startswith(root + "/")]
    return file[len(max(under, key=len)) + 1 :] if under else file
