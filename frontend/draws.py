"""Modules whose Python code draws random numbers: `random.random() < self.layerdrop`.

A trace would freeze one draw for good. Such a module runs as it is; where the model itself draws,
the plan says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from stagecut.frontend.example import Example
from stagecut.frontend.keeping import python_draws
from stagecut.frontend.running import as_it_is, can_run, run


def drawing_modules(model: nn.Module, example: Example) -> list[str]:
    """Paths of the modules whose own code draws; "" for the model itself, or where unknown."""
    if not can_run(model):
        return [""]
    found: list[str] = []

    def watching(path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with python_draws() as drawn:
                made = forward(*args, **kwargs)
                if drawn():
                    found.append(path)
            return made

        return call

    forwards = {
        name: watching(name, as_it_is(module)) for name, module in model.named_modules() if name
    }
    with python_draws() as drawn:
        run(model, example, example.kwargs, forwards)
        if drawn():
            found.append("")
    return list(dict.fromkeys(found))
