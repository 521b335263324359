from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stagecut.ir.clusterfile import dump_cluster, load_cluster
from stagecut.ir.device import Cluster, Link, PairLink
from stagecut.ir.devices import CLUSTERS, cluster, device
from stagecut.ir.errors import ArgumentError

TEXT = """
devices = ["A100", "T4", "mine", "mine"]
devices_per_node = 2

[inside]
latency_seconds = 1e-5
bytes_per_second = 2e11

[between]
latency_seconds = 3e-5
bytes_per_second = 1e9
source = "a cable"

[[link]]
ranks = [3, 0]
latency_seconds = 1e-4
bytes_per_second = 5e8

[device.mine]
like = "A100"
memory_bytes = 6e10
flops_per_second = { float32 = 15e12, bfloat16 = 2e14 }
"""


def load(tmp_path: Path, text: str) -> Cluster:
    path = tmp_path / "box.toml"
    path.write_text(text)
    return load_cluster(path)


def test_a_file_by_hand(tmp_path: Path) -> None:
    found = load(tmp_path, TEXT)
    assert [d.name for d in found.devices] == ["A100-80GB", "T4", "mine", "mine"]
    mine = found.devices[2]
    assert mine.memory_bytes == 6e10 and dict(mine.flops_per_second)["float32"] == 15e12
    assert mine.bytes_per_second == device("A100").bytes_per_second
    assert found.name == "box" and not found.assumed
    assert found.link(0, 1) == Link(1e-5, 2e11)
    assert found.link(1, 2) == Link(3e-5, 1e9, "a cable")
    assert found.link(0, 3) == found.link(3, 0) == Link(1e-4, 5e8)


@pytest.mark.parametrize("name", CLUSTERS)
def test_presets_survive_the_file(tmp_path: Path, name: str) -> None:
    group = cluster(name, 4)
    assert load(tmp_path, dump_cluster(group)) == group


def test_what_is_odd_survives_the_file(tmp_path: Path) -> None:
    first = load(tmp_path, TEXT)
    twin = replace(first.devices[2], memory_bytes=1e9, source='a "quoted" \\ källa\n')
    odd = replace(
        first, name='two "kinds"', devices=(*first.devices, twin),
        pairs=(PairLink((1, 4), Link(0.0, 1.5e8, "slow")),),
    )  # fmt: skip
    again = load(tmp_path, dump_cluster(odd))
    assert again.name == odd.name and again.pairs == odd.pairs
    assert [replace(d, name="") for d in again.devices] == [
        replace(d, name="") for d in odd.devices
    ]
    assert len({d.name for d in again.devices}) == 4  # costs are kept by name


def test_one_device_needs_no_link(tmp_path: Path) -> None:
    assert load(tmp_path, 'devices = ["H100"]').devices == (device("H100"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("devices = [", "cannot be read"),
        ("name = 'x'", "it needs devices"),
        ("devices = ['A100', 'A100']", r"it needs \[inside\], with latency_seconds"),
        (TEXT.replace("[between]", "[beyond]"), "it has beyond; known are name, devices"),
        (TEXT.replace('"T4"', '"T5"'), "no device called 'T5'"),
        (TEXT.replace("ranks = [3, 0]", "ranks = [3, 4]"), r"ranks \(3, 4\): there are 4 devices"),
        (TEXT.replace("ranks = [3, 0]", "ranks = 3"), "give two"),
        (TEXT.replace("bytes_per_second = 1e9", "bytes_per_second = 0"), "between: .* above 0"),
        (TEXT.replace("memory_bytes", "memory_gb"), "device.mine has memory_gb; known are"),
        (TEXT.replace("float32 = 15e12, ", ""), "needs float32"),
        (TEXT.replace('like = "A100"\n', ""), "missing.*bytes_per_second"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ArgumentError, match=rf"box\.toml.*{words}"):
        load(tmp_path, text)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ArgumentError, match=r"nowhere\.toml cannot be read"):
        load_cluster("nowhere.toml")


def test_the_first_devices_keep_their_links(tmp_path: Path) -> None:
    found = load(tmp_path, TEXT)
    assert found.first(4) == found
    assert found.first(3).pairs == ()
