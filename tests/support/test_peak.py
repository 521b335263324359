"""The tracker itself, on sums that can be made by hand."""

from __future__ import annotations

import torch

from tests.support.peak import PeakTracker


def test_counts_a_storage_until_its_last_reference_goes() -> None:
    with PeakTracker() as tracker:
        a = torch.zeros(10)
        view = a[2:]
        b = a + 1
        assert tracker.live() == 80
        del a
        assert tracker.live() == 80  # the view holds it
        del view
        assert tracker.live() == 40
        del b
        assert tracker.live() == 0
    assert tracker.peak == 80


def test_counts_what_is_held_from_before_once() -> None:
    a = torch.zeros(10)
    with PeakTracker() as tracker:
        tracker.hold([a, a.view(2, 5)])
        assert tracker.live() == 40
        a.add_(1)
        assert tracker.live() == 40
        tracker.reset()
        _ = a * 2
    assert tracker.peak == 80


def test_leaves_out_what_it_is_told_to_ignore() -> None:
    a = torch.zeros(10)
    with PeakTracker(ignored=[a]) as tracker:
        _ = a.view(5, 2).t()
        assert tracker.peak == 0


def test_saved_tensors_live_until_the_backward() -> None:
    w = torch.ones(10, requires_grad=True)
    with PeakTracker() as tracker:
        y = (w * 2).exp().sum()  # exp saves its result
        assert tracker.live() == 44
        y.backward()
        assert tracker.live() == 44  # y and w.grad
