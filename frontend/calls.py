"""One call of a torch function, as those see it who watch a trace or a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple


class Call(NamedTuple):
    """A call that is about to be made."""

    function: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    frame: FrameType
    """Where it is made."""


Look = Callable[[Call], None]
"""Sees a call before it is made; may raise."""
