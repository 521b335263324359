"""How far a search asks for the lower bound of its incumbent."""

from __future__ import annotations

from stagecut.partitioner.bound import MOST_BINS, lower_bound
from stagecut.partitioner.search import Search

GOOD_ENOUGH, FAIR = 0.01, 0.05
"""Gaps at which a search stops; and the one that it certifies first, where that one seems far."""
_FARTHER = 1.5
"""Gaps above the one aimed at by this factor are worth aiming halfway."""
_FEW_BINS = 300
"""Bins for the bound at a quick look."""


def quick_look(search: Search) -> None:
    """The lower bound as a few bins tell it: often enough where nothing better exists."""
    if search.feasible and not search.finished(GOOD_ENOUGH):
        _look(search, 0.0, _FEW_BINS)


def certify(search: Search) -> None:
    """The lower bound against the incumbent, as far as a good enough certificate needs.

    A fair certificate comes first: where that is out of reach, so is a better one.
    """
    for aim in (FAIR, GOOD_ENOUGH):
        if not search.feasible or search.finished(GOOD_ENOUGH):
            return
        if not search.finished(aim) and not search.aimed(aim):
            _look(search, aim, MOST_BINS)
        if not search.finished(aim):
            return


def halfway(search: Search) -> None:
    """The bound for a certificate between what it reached and what it did not.

    Windows of assignments below a lower target are narrower, and their prices higher.
    """
    if search.bound is None:
        return
    failed = search.bottleneck_seconds / search.bound.target_seconds - 1
    while not search.finished(failed * _FARTHER):
        aim = (failed + search.gap) / 2
        _look(search, aim, MOST_BINS)
        if not search.finished(aim):
            return


def _look(search: Search, aim: float, most_bins: int) -> None:
    upper, crossings = search.bottleneck_seconds, search.crossings
    search.bound = lower_bound(search.problem, upper, aim, search.out_of_time, most_bins, crossings)
    search.raise_bound(search.bound.seconds)
