"""The tests on sizes that torch.export notes in a private field."""

from __future__ import annotations

import torch
from torch import nn

from stagecut.frontend.guards import Guards, readable


class Even(nn.Module):
    def forward(self, x: torch.Tensor, *, other: dict[str, torch.Tensor]) -> torch.Tensor:
        return x * 2 if other["y"].shape[0] % 2 == 0 else x


def test_what_we_use_of_torchs_private_guards_is_there() -> None:
    kwargs = {"x": torch.ones(4, 2), "other": {"y": torch.ones(4, 3)}}
    auto = {0: torch.export.Dim.AUTO}
    shapes = {"x": auto, "other": {"y": auto}}
    program = torch.export.export(Even(), (), kwargs, dynamic_shapes=shapes)
    guards = Guards.of(program, kwargs)
    assert guards.codes == ("(L['other']['y'].size()[0] % 2) == 0",)
    assert guards.rows(4) == (4, 4, guards.codes[0])
    line = Even.forward.__code__.co_firstlineno + 1
    assert guards.at(guards.codes[0]) == f" at tests/frontend/test_guards.py:{line}"
    assert guards.lengths_broken({3: (2, 99)}) is None


def test_a_guard_on_a_length() -> None:
    guards = Guards(("(L['x'].size()[1] % 3) == 0",), {"x": torch.ones(4, 6)})
    assert guards.rows(4) == (1, None, None)
    assert guards.lengths_broken({6: (2, 99)}) == guards.codes[0]
    assert guards.lengths_broken({6: (6, 6)}) is None
    assert readable(guards.codes[0]) == "(x.shape[1] % 3) == 0"
