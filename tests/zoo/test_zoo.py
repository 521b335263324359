"""Every model of the zoo, split at 2, 3 and 4 stages, trains as the unsplit one does."""

from __future__ import annotations

import pytest

from tests.zoo.checking import check
from tests.zoo.table import QUICK, STAGES, ZOO

REST = tuple(name for name in ZOO if name not in QUICK)


@pytest.mark.parametrize("name", QUICK)
def test_quick(name: str) -> None:
    check(ZOO[name], STAGES)


@pytest.mark.zoo
@pytest.mark.slow
@pytest.mark.parametrize("name", REST)
def test_rest(name: str) -> None:
    check(ZOO[name], STAGES)
