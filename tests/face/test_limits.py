"""Memory limits that nothing meets: the limit that the error names works, and nothing is claimed
that is not so."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import stagecut
from stagecut.ir.errors import InfeasibleError
from tests.passes.test_peak import WithLoss
from tests.passes.test_recompute import deep

X = torch.zeros(8, 16)
WORKS = re.compile(r"A limit of (\d+) bytes works")


def planned(limit: float | list[float] | None, recompute: str, **changes: Any) -> stagecut.Plan:
    given = {"schedule": "gpipe", "n_microbatches": 8, "optimizer": "sgd", **changes}
    return stagecut.partition(
        WithLoss(deep()), 2, example_kwargs={"x": X}, memory_limit=limit, recompute=recompute,
        **given,
    )  # fmt: skip


def peaks(plan: stagecut.Plan) -> list[float]:
    return [stage.memory.total for stage in plan.stages]


@pytest.mark.parametrize("recompute", ["auto", "full"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_the_limit_that_is_named_works(recompute: str, share: float) -> None:
    limit = share * max(peaks(planned(None, "full")))
    with pytest.raises(InfeasibleError, match="even with every block recomputed") as raised:
        planned(limit, recompute)
    message = str(raised.value)
    found = WORKS.search(message)
    assert found is not None
    named = int(found[1])
    assert named > limit
    assert max(peaks(planned(named, recompute))) <= named
    assert "recomputation" not in message
    assert ("Proved" in message) == ("state alone" in message)


def test_what_works_is_not_said_to_need_more() -> None:
    works = [
        limit
        for share in (0.7, 0.8, 0.9, 1.0)
        if fits(limit := share * max(peaks(planned(None, "full"))))
    ]
    with pytest.raises(InfeasibleError) as raised:
        planned(0.4 * works[0], "auto")
    named = WORKS.search(str(raised.value))
    assert named is not None and int(named[1]) <= 1.05 * works[0]


def fits(limit: float) -> bool:
    try:
        planned(limit, "auto")
    except InfeasibleError:
        return False
    return True


def test_limits_of_each_device() -> None:
    free = peaks(planned(None, "full"))
    limits = [0.5 * free[0], 0.6 * free[1]]
    with pytest.raises(InfeasibleError) as raised:
        planned(limits, "auto")
    more = re.search(r"(\d+) bytes more on every device work", str(raised.value))
    assert more is not None
    assert planned([limit + int(more[1]) + 1 for limit in limits], "auto").fits


def test_full_keeps_the_limit_that_its_peaks_show() -> None:
    least = max(peaks(planned(None, "full")))
    for share in (0.8, 0.95, 1.0, 1.2):
        try:
            plan = planned(share * least, "full")
        except InfeasibleError:
            continue
        assert max(peaks(plan)) <= share * least


def test_what_is_no_matter_of_memory_is_told_as_it_was() -> None:
    for recompute in ("auto", "full"):
        with pytest.raises(InfeasibleError, match="ask for"):
            stagecut.partition(
                WithLoss(deep()), 200, example_kwargs={"x": X}, memory_limit=1e9,
                recompute=recompute,
            )  # fmt: skip
