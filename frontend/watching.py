"""One mode for all who watch the calls of a trace: every mode of its own slows each of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode

from stagecut.frontend.calls import Call, Look
from stagecut.frontend.checkpoints import Regions
from stagecut.frontend.hints import asks_for_speed


class Watching(TorchFunctionMode):
    """Answers requests for hints, shows every other call to all `looks`, marks regions."""

    def __init__(self, looks: Sequence[Look], regions: Regions) -> None:
        super().__init__()
        self.looks = (*looks, regions.look)
        self.regions = regions

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Passes a call on, once all have looked."""
        call = Call(func, args, kwargs or {}, sys._getframe(1))
        if asks_for_speed(call):
            return False
        for look in self.looks:
            look(call)
        marked = self.regions.mark()
        if marked is None:
            return func(*args, **call.kwargs)
        with marked:
            return func(*args, **call.kwargs)
