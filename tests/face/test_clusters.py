"""Which cluster a plan is for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import stagecut
from stagecut.clusters import find_cluster, table_name
from stagecut.copies import copies_link, pipeline_cluster
from stagecut.ir.clusterfile import dump_cluster
from stagecut.ir.device import Cluster, Link, PairLink
from stagecut.ir.devices import device
from stagecut.ir.errors import ArgumentError

GIB = 2**30


@pytest.mark.parametrize(
    ("driver", "gib", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", 79.3, "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", 39.6, "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", 79.3, "A100-PCIe"),
        ("NVIDIA H100 80GB HBM3", 79.2, "H100"),
        ("NVIDIA H100 PCIe", 79.2, "H100-PCIe"),
        ("NVIDIA H200", 139.8, "H200"),
        ("Tesla T4", 14.6, "T4"),
        ("Tesla V100-SXM2-32GB", 31.7, "V100"),
        ("NVIDIA L40S", 44.4, "L40S"),
        ("NVIDIA L4", 22.2, "L4"),
        ("NVIDIA A10G", 22.2, "A10G"),
        ("NVIDIA GeForce RTX 4090", 23.6, None),
        ("Tesla V100-SXM2-16GB", 15.8, None),
    ],
)
def test_the_driver_s_names(driver: str, gib: float, name: str | None) -> None:
    assert table_name(driver, gib * GIB) == name


def test_present_gpus_are_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_cluster(None, 2).assumed
    card = SimpleNamespace(name="NVIDIA L4", total_memory=22.2 * GIB)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    found = find_cluster(None, 2)
    assert [d.name for d in found.devices] == ["L4", "L4"] and not found.assumed


def test_a_file_is_planned_for(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    slow = Link(1e-3, 1e6)
    path.write_text(dump_cluster(Cluster("two", (device("CPU"),) * 2, 2, slow, slow)))
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    x = torch.zeros(4, 64)
    for given in (path, str(path)):
        plan = stagecut.partition(model, 2, (x,), cluster=given)
        (sent,) = plan.stages[0].sends
        expected = 2e-3 + (sent.n_bytes + sent.gradient_bytes) / 1e6
        assert plan.stages[1].send_seconds + plan.stages[1].receive_seconds == pytest.approx(
            expected
        )
    with pytest.raises(ArgumentError, match="needs 3 devices and the cluster two has 2"):
        stagecut.partition(model, 3, (x,), cluster=path)


def test_the_slower_of_two_links_costs_more() -> None:
    """Three ranks, the last pair far slower: what is sent over it is seen in the stages."""
    fast, slow = Link(1e-6, 1e11), Link(1e-3, 1e7)
    group = Cluster("three", (device("A100"),) * 3, 3, fast, fast, pairs=(PairLink((1, 2), slow),))
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6)))
    plan = stagecut.partition(model, 3, (torch.zeros(4, 64),), cluster=group, method="uniform")
    first, _, last = plan.stages
    assert first.send_seconds + first.receive_seconds < 1e-4
    assert last.send_seconds + last.receive_seconds > 2e-3


def test_a_slower_device_gets_less() -> None:
    group = Cluster("mixed", (device("H100"), device("T4")), 2, Link(1e-6, 1e11), Link(1e-6, 1e11))
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, device="meta") for _ in range(12)))
    x = torch.zeros(4096, 4096, device="meta")
    first, second = stagecut.partition(model, 2, (x,), cluster=group).stages
    assert first.flops_forward > 4 * second.flops_forward


def test_copies_use_the_slowest_link_between_them() -> None:
    fast, slow = Link(1e-6, 1e11), Link(1e-3, 1e7)
    cards = (device("A100"),) * 4
    plain = Cluster("four", cards, 4, fast, slow)
    assert copies_link(plain, 2) == fast
    assert copies_link(plain, 1) is None
    odd = Cluster("four", cards, 4, fast, slow, pairs=(PairLink((2, 3), slow),))
    assert copies_link(odd, 2) == slow
    across = Cluster("four", cards, 4, fast, fast, pairs=(PairLink((0, 2), slow),))
    assert copies_link(across, 2) == fast
    assert pipeline_cluster(across, 2).link(0, 1) == slow
