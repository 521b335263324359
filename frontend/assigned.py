"""Tensors that a model's forward assigns to its own attributes: torch.export warns, we say it once.

Such an attribute is no buffer: no trace keeps it, and no stage has it. `_flat_weights` of recurrent
layers are the exception: they are the layer's own parameters under a second name.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from stagecut.frontend.sources import is_users

_WARNING = re.compile(r"The tensor attributes? (.*) (?:was|were) assigned during export")


@contextmanager
def assigned_attributes() -> Iterator[list[str]]:
    """Collects the names of attributes assigned inside; warnings of torch's own code stop here."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    for warning in caught:
        match = _WARNING.search(str(warning.message))
        if match is None and is_users(warning.filename):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
        elif match is not None:
            names = match[1].split(", ")
            found += [n.removeprefix("self.") for n in names if "._flat_weights[" not in n]
