from __future__ import annotations

import gc

import pytest
from torch import nn

import stagecut
from stagecut.ir.errors import StagecutError


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_as_before_even_after_an_error(on):
    was_on = gc.isenabled()
    (gc.enable if on else gc.disable)()
    try:
        with pytest.raises(StagecutError):
            stagecut.partition(nn.Linear(2, 2), 1, ("not a tensor",))
        assert gc.isenabled() is on
    finally:
        (gc.enable if was_on else gc.disable)()
