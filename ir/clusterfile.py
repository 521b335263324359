"""Clusters as small TOML files, written by hand or by `stagecut profile --links`.

devices = ["A100", "A100", "mine"]     # in rank order: of the table, or described below
devices_per_node = 2                   # all in one node where left out

[inside]                               # between devices of one node
latency_seconds = 1e-5
bytes_per_second = 240e9
source = "NVLink"

[between]                              # between nodes; needed where there are several
latency_seconds = 2e-5
bytes_per_second = 20e9

[[link]]                               # pairs that differ, both ways
ranks = [0, 1]
latency_seconds = 1.5e-5
bytes_per_second = 25e9

[device.mine]                          # everything that `like` has not
like = "A100"
memory_bytes = 60e9
flops_per_second = { float32 = 15e12, bfloat16 = 200e12 }
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from stagecut.ir.data import from_data, to_data
from stagecut.ir.device import Cluster, Device, Link, PairLink
from stagecut.ir.devices import device as known_device
from stagecut.ir.errors import ArgumentError, PlanError

SUFFIX = ".toml"
_ALONE = Link(0.0, float("inf"))
"""Of a single device, which sends nothing."""
_KEYS = ("name", "devices", "devices_per_node", "inside", "between", "link", "device")


def load_cluster(path: str | Path) -> Cluster:
    """The cluster that a TOML file describes.

    Raises:
        ArgumentError: the file cannot be read, or is no cluster; the message says where.
    """
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ArgumentError(f"the cluster {path} cannot be read: {error}") from error
    try:
        return _cluster(document, Path(path).stem)
    except (ArgumentError, PlanError) as error:
        raise ArgumentError(f"the cluster {path}: {error}") from error


def dump_cluster(cluster: Cluster) -> str:
    """The TOML text of a cluster; `load_cluster` is its inverse."""
    names = _names(cluster)
    lines = [
        f"name = {_text(cluster.name)}",
        f"devices = [{', '.join(_text(names[device]) for device in cluster.devices)}]",
        f"devices_per_node = {cluster.devices_per_node}",
        *_table("[inside]", _link_data(cluster.inside)),
        *_table("[between]", _link_data(cluster.between)),
    ]
    for pair in cluster.pairs:
        data = {"ranks": list(pair.ranks), **_link_data(pair.link)}
        lines += _table("[[link]]", data)
    for device, name in names.items():
        if name not in _table_names(device):
            data = to_data(device)
            del data["name"]
            data["flops_per_second"] = dict(device.flops_per_second)
            lines += _table(f"[device.{_text(name)}]", data)
    return "\n".join(lines) + "\n"


def _cluster(document: Mapping[str, Any], stem: str) -> Cluster:
    _only(document, _KEYS, "it")
    names = document.get("devices")
    if not isinstance(names, list) or not names:
        raise ArgumentError('it needs devices, a list of names in rank order: ["A100", "A100"]')
    own = {name: _device(name, data) for name, data in document.get("device", {}).items()}
    devices = tuple(own[name] if name in own else known_device(str(name)) for name in names)
    per_node = document.get("devices_per_node", len(devices))
    if not isinstance(per_node, int) or per_node < 1:
        raise ArgumentError(f"devices_per_node is {per_node!r}; give 1 or more")
    inside = _link(document, "inside", per_node > 1 and len(devices) > 1)
    between = _link(document, "between", per_node < len(devices))
    pairs = tuple(_pair(data) for data in document.get("link", []))
    name = str(document.get("name", stem))
    near, far = inside or between or _ALONE, between or inside or _ALONE
    return Cluster(name, devices, per_node, near, far, pairs=pairs)


def _device(name: str, data: Any) -> Device:
    given = dict(_mapping(data, f"device.{name}"))
    like = given.pop("like", None)
    known = [field.name for field in fields(Device) if field.name != "name"]
    _only(given, [*known, "like"], f"device.{name}")
    rates = given.get("flops_per_second")
    if isinstance(rates, Mapping):
        given["flops_per_second"] = [[dtype, float(rate)] for dtype, rate in rates.items()]
    start = to_data(known_device(str(like))) if like is not None else _DEFAULTS
    made = from_data(Device, {"source": "given", **start, **given, "name": name})
    if "float32" not in dict(made.flops_per_second):
        raise ArgumentError(f"device.{name}: flops_per_second needs float32, the rate of the rest")
    return made


_DEFAULTS: Mapping[str, Any] = {
    field.name: to_data(field.default) for field in fields(Device) if field.default is not MISSING
}


def _link(document: Mapping[str, Any], key: str, needed: bool) -> Link | None:
    if key not in document:
        if needed:
            raise ArgumentError(f"it needs [{key}], with latency_seconds and bytes_per_second")
        return None
    return _link_of(document[key], key)


def _link_of(data: Any, where: str) -> Link:
    given = {"source": "given", **_mapping(data, where)}
    _only(given, [field.name for field in fields(Link)], where)
    made = from_data(Link, given)
    if made.latency_seconds < 0 or made.bytes_per_second <= 0:
        raise ArgumentError(f"{where}: latency cannot be negative, and bytes_per_second is above 0")
    return made


def _pair(data: Any) -> PairLink:
    given = dict(_mapping(data, "link"))
    ranks = given.pop("ranks", None)
    if not isinstance(ranks, Sequence) or len(ranks) != 2:
        raise ArgumentError(f"link: ranks is {ranks!r}; give two, as [0, 1]")
    return PairLink((int(ranks[0]), int(ranks[1])), _link_of(given, "link"))


def _mapping(data: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ArgumentError(f"{where} is {data!r}; give a table")
    return data


def _only(given: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    if unknown := sorted(set(given) - set(known)):
        raise ArgumentError(f"{where} has {', '.join(unknown)}; known are {', '.join(known)}")


def _names(cluster: Cluster) -> dict[Device, str]:
    """A name for each different device; those of the table keep theirs."""
    names: dict[Device, str] = {}
    for device in cluster.devices:
        if device not in names:
            taken = device.name in names.values()
            names[device] = f"{device.name} ({len(names)})" if taken else device.name
    return names


def _table_names(device: Device) -> tuple[str, ...]:
    """The device's name where the table has exactly this one."""
    try:
        known = known_device(device.name)
    except ArgumentError:
        return ()
    return (device.name,) if known == device else ()


def _link_data(link: Link) -> dict[str, Any]:
    data: dict[str, Any] = to_data(link)
    return data


def _table(head: str, data: Mapping[str, Any]) -> list[str]:
    return ["", head, *(f"{key} = {_value(value)}" for key, value in data.items())]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{k} = {_value(v)}' for k, v in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return _text(value) if isinstance(value, str) else repr(value)


def _text(value: str) -> str:
    """A TOML basic string."""
    plain = (c if c.isprintable() and c not in '\\"' else f"\\u{ord(c):04x}" for c in value)
    return f'"{"".join(plain)}"'
