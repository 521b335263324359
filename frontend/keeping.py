"""The user's model as it was: what forward leaves on it while it is traced is taken off again.

A trace runs forward on fake tensors. What forward keeps on `self` (a cache, the last attention, a
count of calls) would stay there, fake; and what it computes from such a value is frozen.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from stagecut.frontend.generators import Drawn

# Torch's own tables: their contents change, not they themselves.
KEPT_BY_TORCH = frozenset(vars(nn.Module())) - {"training"}
_T = TypeVar("_T")
_PLAIN = (bool, int, float, str, type(None))


@contextmanager
def kept(model: nn.Module, changed: dict[str, None]) -> Iterator[None]:
    """Inside, forward may change attributes of the model's modules; afterwards they are as before.

    So is which of its tensors require gradients, and what its own generators draw next.

    Args:
        model: What runs inside.
        changed: Gets `path.name (before, then after)` of the numbers, flags and strings that
            forward changed.
    """
    modules = [(name, module, _own(module)) for name, module in model.named_modules()]

    def note(*_: Any) -> None:
        for name, module, before in modules:
            changed.update(dict.fromkeys(_changes(name, before, vars(module))))

    plain = [value for module in model.modules() for value in vars(module).values()]
    tensors = (*model.parameters(), *model.buffers(), *_of(torch.Tensor, plain))
    trains = [(tensor, tensor.requires_grad) for tensor in tensors]
    states = [(generator, generator.get_state()) for generator in _of(torch.Generator, plain)]
    hooks = [(table, table.copy()) for m in model.modules() for table in _hook_tables(m)]
    hook = model.register_forward_hook(note)
    try:
        yield
    finally:
        hook.remove()
        # Some libraries register hooks in the first forward, and note on the module that they did.
        for table, content in hooks:
            if table.keys() != content.keys():
                table.clear()
                table.update(content)
        for _, module, before in modules:
            _restore(module, before)
        for tensor, trained in trains:
            if tensor.requires_grad != trained and tensor.is_leaf:
                tensor.requires_grad_(trained)
        for generator, state in states:
            generator.set_state(state)


def _hook_tables(module: nn.Module) -> Iterator[dict[int, Any]]:
    for name in sorted(KEPT_BY_TORCH):
        table = vars(module).get(name)
        if "_hooks" in name and isinstance(table, dict):
            yield table


def _of(kind: type[_T], values: Iterable[Any]) -> list[_T]:
    return [value for value in values if isinstance(value, kind)]


def _own(module: nn.Module) -> dict[str, Any]:
    """A module's own attributes; lists and dicts with copies of what they hold."""
    own = {name: value for name, value in vars(module).items() if name not in KEPT_BY_TORCH}
    return {name: (value, _content(value)) for name, value in own.items()}


def _content(value: Any) -> Any:
    return value.copy() if type(value) in (list, dict, set) else None


def _changes(path: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    for name, (old, _) in before.items():
        new = after.get(name)
        plain = isinstance(old, _PLAIN) and isinstance(new, _PLAIN)
        if plain and name != "training" and new != old:
            yield f"{path}.{name} ({old!r}, then {new!r})".lstrip(".")


def _restore(module: nn.Module, before: dict[str, Any]) -> None:
    own = vars(module)
    for name in [n for n in own if n not in before and n not in KEPT_BY_TORCH]:
        del own[name]
    for name, (value, content) in before.items():
        if name not in own or own[name] is not value:
            own[name] = value
        if content is not None and not _same(value, content):
            value.clear()
            value.extend(content) if isinstance(value, list) else value.update(content)


def _same(value: Any, content: Any) -> bool:
    """Whether a list, dict or set holds what it held, told by identity: tensors have no order."""
    if len(value) != len(content):
        return False
    if isinstance(value, dict):
        return all(k in content and content[k] is v for k, v in value.items())
    return isinstance(value, set) or all(a is b for a, b in zip(value, content, strict=True))


@contextmanager
def python_draws() -> Iterator[Callable[[], bool]]:
    """Inside, Python's and numpy's global generators may be drawn from; afterwards they are back.

    Yields:
        Tells whether they were drawn from so far.
    """
    state, numpy_state = random.getstate(), np.random.get_state()

    def drawn() -> bool:
        same = all(map(np.array_equal, numpy_state, np.random.get_state()))
        return not same or random.getstate() != state

    try:
        yield drawn
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Inside, the model's modules may be run; afterwards they and their generators are as before.

    Torch's default generators are not among them.
    """
    with kept(model, {}), python_draws(), Drawn() as drawn:
        try:
            yield
        finally:
            drawn.put_back()
