"""The user's dataclasses as containers of inputs and outputs.

Torch looks into a dataclass once it is registered with it. That is done here for those that a
model takes or returns, so that nobody has to.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from stagecut.frontend.trees import flatten

_UNKNOWN = re.compile(r"<class '[^']+'> in output")


def unknown_output(error: Exception) -> bool:
    """Whether torch.export gave up on the class of an output."""
    return _UNKNOWN.search(str(error)) is not None


def register_dataclasses(value: Any) -> bool:
    """Registers the classes of all dataclasses in a nest; whether there were any new ones."""
    classes = {type(leaf) for leaf in flatten(value)[0] if dataclasses.is_dataclass(leaf)}
    for kind in classes:
        torch.export.register_dataclass(kind)
    if classes:
        register_dataclasses(value)
    return bool(classes)


@contextmanager
def registered_outputs(model: nn.Module) -> Iterator[None]:
    """Inside, dataclasses that the model returns are registered before torch meets them."""
    hook = model.register_forward_hook(lambda _, __, output: _register(output))
    try:
        yield
    finally:
        hook.remove()


def _register(output: Any) -> None:
    register_dataclasses(output)
