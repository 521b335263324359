"""Real text that every machine has: the sources of Python's own standard library."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch

MODULES = ("argparse", "ast", "collections/__init__", "dataclasses", "inspect", "typing")


def standard_library() -> torch.Tensor:
    """The sources of a few modules as one tensor of ASCII codes; other characters become `?`."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    sources = [(folder / f"{name}.py").read_text("utf-8") for name in MODULES]
    ascii_bytes = "\n".join(sources).encode("ascii", "replace")
    return torch.frombuffer(bytearray(ascii_bytes), dtype=torch.uint8).long()


def batch(
    text: torch.Tensor, step: int, rows: int, tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The characters [rows, tokens] of one step and those that follow them; the same every time."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - tokens - 1, (rows,), generator=generator)
    places = starts[:, None] + torch.arange(tokens + 1)
    window = text[places]
    return window[:, :-1], window[:, 1:]
