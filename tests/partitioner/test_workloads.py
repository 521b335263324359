"""The published problems with proved optima: read from the folder in STAGECUT_WORKLOADS."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from stagecut.ir.errors import ArgumentError, InfeasibleError
from stagecut.partitioner.network import Network, Node, Wire, contract
from stagecut.partitioner.solve import solve
from stagecut.partitioner.workloads import read_network, solve_file

FOLDER = os.environ.get("STAGECUT_WORKLOADS")


def _cells() -> list:
    """(file, factor on transfers, devices, optimum) of every proved optimum."""
    if FOLDER is None:
        return [pytest.param(*[None] * 4, marks=pytest.mark.skip("STAGECUT_WORKLOADS is not set"))]
    plain = json.loads((Path(FOLDER) / "optima.json").read_text())
    dear = json.loads((Path(FOLDER) / "optima_transfer_x1000.json").read_text())
    tables = [(name, 1.0, entry["optimum_by_devices"]) for name, entry in plain.items()]
    tables += [(name, 1000.0, entry) for name, entry in dear.items()]
    return [
        pytest.param(name, factor, int(k), optimum, id=f"{name}-x{factor:.0f}-{k}")
        for name, factor, table in tables
        for k, optimum in table.items()
    ]


def _problem(name: str, factor: float, devices: int):
    network = read_network(Path(FOLDER) / f"{name}.json")
    return contract(replace(network, seconds_per_byte=factor), devices).problem


@pytest.mark.parametrize("name, factor, devices, optimum", _cells())
def test_auto_is_within_one_percent(name, factor, devices, optimum):
    solution = solve(_problem(name, factor, devices), "auto")
    assert solution.evaluation.bottleneck_seconds <= optimum * 1.01
    assert solution.lower_bound_seconds <= optimum * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name, factor, devices, optimum", _cells())
def test_exact_proves_the_optimum(name, factor, devices, optimum):
    solution = solve(_problem(name, factor, devices), "exact", time_limit=60.0)
    assert solution.evaluation.bottleneck_seconds == pytest.approx(optimum, rel=1e-6)
    assert solution.optimal


PLACEMENT = {
    "maxSizePerFPGA": 100.0, "maxFPGAs": 2, "maxCPUs": 0,
    "nodes": [
        {"id": i, "fpgaLatency": seconds, "isBackwardNode": int(i > 2), "supportedOnFpga": 1,
         "colorClass": i % 3, "size": 10.0}
        for i, seconds in enumerate([3, 1, 2, 6, 2, 4])
    ],
    "edges": [
        {"sourceId": a, "destId": b, "cost": 0.5}
        for a, b in [(0, 1), (1, 2), (2, 5), (5, 4), (4, 3), (0, 3)]
    ],
}  # fmt: skip


def test_colour_classes_and_backward_nodes(tmp_path):
    path = tmp_path / "net.json"
    path.write_text(json.dumps(PLACEMENT))
    answer = solve_file(path, 2, "exact")
    stage = answer["assignment"]
    assert stage == {"0": 0, "3": 0, "1": 1, "4": 1, "2": 1, "5": 1}
    assert answer["bottleneck"] == pytest.approx(3 + 6 + 0.5 + 0.5)
    assert answer["optimal"]
    assert json.loads(json.dumps(answer)) == answer


def test_fewer_stages_than_devices_are_fine_where_the_format_says_at_most(tmp_path):
    path = tmp_path / "net.json"
    document = {**PLACEMENT, "edges": [{**edge, "cost": 50.0} for edge in PLACEMENT["edges"]]}
    path.write_text(json.dumps(document))
    assert solve_file(path, 2)["bottleneck"] == pytest.approx(18)


def test_our_own_format(tmp_path):
    path = tmp_path / "net.json"
    nodes = [{"id": name, "forward_seconds": 1.0, "weight_bytes": 5} for name in "abcd"]
    nodes[0]["group"] = nodes[1]["group"] = "g"
    nodes[3]["stage"] = 1
    values = [{"from": a, "to": [b], "bytes": 10} for a, b in ("ab", "bc", "cd")]
    document = {"stagecut": 1, "nodes": nodes, "values": values, "bytes_per_second": 100}
    path.write_text(json.dumps(document))
    answer = solve_file(path, 2)
    assert answer["assignment"] == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert answer["bottleneck"] == pytest.approx(2.1)


def test_pipedream_profiles(tmp_path):
    path = tmp_path / "graph.txt"
    figures = "forward_compute_time=1.0, backward_compute_time=2.0, activation_size={}, "
    figures = figures + "parameter_size=4.0"
    lines = [f"node{i} -- Linear({i}) -- {figures.format('1000.0')}" for i in range(4)]
    path.write_text("\n".join([*lines, *(f"\tnode{i} -- node{i + 1}" for i in range(3))]))
    answer = solve_file(path, 2, bandwidth=1e6)
    assert answer["bottleneck"] == pytest.approx(6e-3 + 2e-3)
    with pytest.raises(ArgumentError, match="give bandwidth"):
        solve_file(path, 2)


def test_circles_become_one_cluster():
    nodes = tuple(Node(name, 1.0, group=g) for name, g in (("a", 1), ("b", 2), ("c", 1), ("d", 3)))
    wires = (Wire("a", ("b",)), Wire("b", ("c",)), Wire("c", ("d",)))
    contracted = contract(Network(nodes, wires), 2)
    assert contracted.problem.n == 2
    assert contracted.cluster.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    "text, said",
    [
        ("{}", "neither"),
        ('{"stagecut": 1, "nodes": [{}]}', r"nodes\[0\]: id is missing"),
        ('{"stagecut": 1, "nodes": [{"id": 1, "saved_bytes": -1}]}', "saved_bytes is -1"),
        ('{"stagecut": 1, "nodes": [{"id": 1}], "values": [{"from": 1, "to": [2]}]}', "2"),
        ('{"stagecut": 1, "nodes": [{"id": 1}, {"id": 1}]}', "share an id"),
        ('{"stagecut": 1, "nodes": [', "cannot be read"),
    ],
)
def test_bad_files_say_what_is_wrong(tmp_path, text, said):
    path = tmp_path / "net.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=said):
        solve_file(path, 1)


def _told(tmp_path, document, devices=2, **given) -> str:
    path = tmp_path / "net.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ArgumentError) as told:
        solve_file(path, devices, **given)
    return str(told.value)


def _own(nodes, values=(), **more):
    return {"stagecut": 1, "nodes": [{"id": n} if not isinstance(n, dict) else n for n in nodes],
            "values": list(values), **more}  # fmt: skip


@pytest.mark.parametrize(
    "document, said",
    [
        (_own([1, "1"]), ['share an id: 1, "1"']),
        (_own("ab", [{"from": "a", "to": "ab"}]), ['from "a": to is "ab"; give a list']),
        (_own("a", [{"from": "a"}]), ['values[0], from "a": to is missing']),
        (_own([{"id": "a", "forward_second": 1}], valus=[]),
         ['node "a": there is no key "forward_second"; did you mean forward_seconds?',
          'the file: there is no key "valus"; did you mean values?']),
        (_own("abc", [{"from": "a", "to": ["b"]}, {"from": "b", "to": ["a", "c"]}]),
         ['nodes "a", "b" wait for each other in a circle']),
        (_own("ab", [{"from": "a", "to": ["a", "b"]}]), ['node "a" is given its own value']),
        (_own([1, 2], [{"from": "1", "to": [2, 3]}]),
         ['names "1", and there is no such node; did you mean 1?', "names 3, and"]),
        (_own([{"id": "a", "weight_bytes": "5", "stage": -1, "group": ["g"]}, 3.5]),
         ['weight_bytes is "5"', "stage is -1", 'group is ["g"]', "nodes[1]: id is 3.5"]),
        (_own("a", bytes_per_second=0, latency_seconds=True, memory_limit_bytes=float("nan")),
         ["bytes_per_second is 0", "latency_seconds is true", "memory_limit_bytes is NaN"]),
        (_own([]), ["it has no nodes"]),
        ({"stagecut": 2, "nodes": {}}, ["version, is 2", "nodes is {}; give a list"]),
        ({"stagecut": 1, "nodes": [1], "values": ["a"]}, ["nodes[0] is 1", 'values[0] is "a"']),
    ],
)  # fmt: skip
def test_all_that_is_wrong_with_our_own_format_is_told_at_once(tmp_path, document, said):
    told = _told(tmp_path, document)
    for words in said:
        assert words in told
    faults = told.splitlines()[1:]
    assert len(faults) == len(said)


def test_pins_that_cannot_be_kept_are_told_at_once(tmp_path):
    nodes = [{"id": "a", "stage": 7}, {"id": "b", "stage": 8}, {"id": "c"}]
    told = _told(tmp_path, _own(nodes))
    assert "'a' is pinned to stage 7 of 2" in told and "'b' is pinned to stage 8" in told


def test_a_bandwidth_is_for_pipedream_alone(tmp_path):
    assert "bytes_per_second in the file" in _told(tmp_path, _own("ab"), bandwidth=-1.0)
    assert "each edge has the seconds" in _told(tmp_path, PLACEMENT, bandwidth=1e9)
    profile = tmp_path / "graph.txt"
    profile.write_text("node1 -- Input0 -- forward_compute_time=0.0\n\tnode1 -- node2\n")
    with pytest.raises(ArgumentError, match="bandwidth is 0; give more than 0"):
        solve_file(profile, 1, bandwidth=0.0)


def test_a_file_without_nodes_is_not_cut(tmp_path):
    assert "the file has no nodes" in _told(tmp_path, {**PLACEMENT, "nodes": [], "edges": []},
                                            format="placement")  # fmt: skip


def test_json_that_is_a_list(tmp_path):
    assert "is JSON but a list" in _told(tmp_path, [1, 2])
    assert "the file holds [1, 2], not an object" in _told(tmp_path, [1, 2], format="stagecut")


def test_the_documented_example_is_one(tmp_path):
    text = (Path(__file__).parents[2] / "docs/problem-format.md").read_text()
    path = tmp_path / "net.json"
    path.write_text(text.split("```json")[1].split("```")[0])
    answer = solve_file(path, 2, "exact")
    assert answer["assignment"] == {"embed": 0, "block": 0, "head": 1, "loss": 1}
    assert answer["optimal"]


def test_too_many_devices_for_our_own_format(tmp_path):
    path = tmp_path / "net.json"
    path.write_text('{"stagecut": 1, "nodes": [{"id": 1}]}')
    with pytest.raises(InfeasibleError, match="2 stages"):
        solve_file(path, 2)
