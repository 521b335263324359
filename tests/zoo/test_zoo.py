"""Every model of the zoo, split at 2, 3 and 4 stages, trains as the unsplit one does."""

from __future__ import annotations

import pytest

from tests.zoo.checking import check
from tests.zoo.table import QUICK, STAGES, ZOO

SLOW = tuple(pytest.param(name, marks=pytest.mark.zoo) for name in ZOO if name not in QUICK)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_trains_as_the_unsplit_model(name: str) -> None:
    check(ZOO[name], STAGES)


def test_what_the_zoo_must_hold() -> None:
    assert len(ZOO) >= 40 and set(QUICK) <= set(ZOO)
