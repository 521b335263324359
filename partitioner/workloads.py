"""Reads partitioning problems from files, and solves them.

placement   JSON published with Tarnawski et al., "Efficient Algorithms for Device Placement of DNN
            Graph Operators" (NeurIPS 2020). Accelerators only: `fpgaLatency` is a node's time, a
            `colorClass` keeps nodes together, an edge's `cost` is the time to move its source's
            output, charged once to every stage that touches it. At most K stages.
pipedream   `graph.txt` profiles published with PipeDream (Narayanan et al., SOSP 2019): forward and
            backward milliseconds, activation and parameter bytes of each layer. At most K stages.
stagecut    our own JSON, exactly K stages: `own_format.py`, docs/problem-format.md.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from stagecut.ir.errors import ArgumentError
from stagecut.partitioner.network import Network, Node, NodeId, Wire, contract
from stagecut.partitioner.own_format import read_own
from stagecut.partitioner.solve import solve

Format = Literal["auto", "placement", "pipedream", "stagecut"]
_PIPEDREAM_FIELDS = (
    "forward_compute_time",
    "backward_compute_time",
    "activation_size",
    "parameter_size",
)


def solve_file(
    path: str | Path,
    devices: int,
    method: str = "auto",
    time_limit: float = 10.0,
    format: Format = "auto",
    bandwidth: float | None = None,
) -> dict[str, Any]:
    """Cuts the network in a file; `bandwidth`, in bytes a second, is for `pipedream` files alone.

    Returns the stage of every node by its id as text, and what is known of how good that is, as
    plain data for JSON: assignment, bottleneck, lower_bound, gap, optimal, seconds, method,
    stopped_by_clock. `lower_bound` and `gap` say what was proved.

    Raises:
        ArgumentError: the file cannot be read as that format.
        InfeasibleError: nothing fits.
    """
    if devices < 1:
        raise ArgumentError(f"devices is {devices}; give 1 or more")
    started = time.monotonic()
    contracted = contract(read_network(path, format, bandwidth), devices)
    solution = solve(contracted.problem, method, time_limit)
    stages = contracted.expand(solution.assignment)
    return {
        "assignment": {str(node): stage for node, stage in stages.items()},
        "bottleneck": solution.evaluation.bottleneck_seconds,
        "lower_bound": solution.lower_bound_seconds,
        "gap": solution.gap,
        "optimal": solution.optimal,
        "seconds": time.monotonic() - started,
        "method": solution.method,
        "stopped_by_clock": solution.stopped_by_clock,
    }


def read_network(
    path: str | Path, format: Format = "auto", bandwidth: float | None = None
) -> Network:
    """Reads a file of one of the formats above; `auto` tells them apart.

    Raises:
        ArgumentError: the file is missing, is none of them, or lacks something, named.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"cannot read {path}: {error}") from error
    if format == "auto":
        format = _format_of(path, text)
    _check_bandwidth(format, bandwidth)
    try:
        if format == "pipedream":
            return _read_pipedream(text, bandwidth or 0.0)
        document = json.loads(text)
        return _read_placement(document) if format == "placement" else read_own(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ArgumentError(f"{path} cannot be read as {format}: {what}") from error


def _format_of(path: str | Path, text: str) -> Format:
    if not text.lstrip().startswith(("{", "[")):
        if " -- " in text:
            return "pipedream"
        raise ArgumentError(f"{path} is neither JSON nor a profile of PipeDream's (graph.txt)")
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise ArgumentError(
            f"{path} is JSON but a list; the formats placement and stagecut are {{...}}"
        )
    if "stagecut" in document:
        return "stagecut"
    if '"fpgaLatency"' in text:
        return "placement"
    raise ArgumentError(
        f'{path} is JSON but has neither "fpgaLatency" (format placement) nor "stagecut" (our own)'
    )


def _check_bandwidth(format: Format, bandwidth: float | None) -> None:
    if format == "pipedream":
        if bandwidth is None:
            raise ArgumentError("pipedream profiles have no link; give bandwidth in bytes a second")
        if not bandwidth > 0:
            raise ArgumentError(f"bandwidth is {bandwidth:g}; give more than 0 bytes a second")
    elif bandwidth is not None:
        instead = (
            "there bytes_per_second in the file says it"
            if format == "stagecut"
            else "there each edge has the seconds that its transfer takes"
        )
        raise ArgumentError(
            f"bandwidth is for pipedream profiles and this is format {format}: {instead}; "
            "leave bandwidth out"
        )


def _read_placement(document: Mapping[str, Any]) -> Network:
    barred = [node["id"] for node in document["nodes"] if not int(node["supportedOnFpga"])]
    if barred:
        raise ArgumentError(
            f"nodes {barred[:5]} cannot run on an accelerator and only accelerators are planned "
            "for; remove them from the file or set supportedOnFpga"
        )
    targets: dict[NodeId, list[NodeId]] = defaultdict(list)
    cost: dict[NodeId, float] = {}
    for edge in document["edges"]:
        targets[edge["sourceId"]].append(edge["destId"])
        cost[edge["sourceId"]] = float(edge["cost"])
    return Network(
        nodes=tuple(_placement_node(node) for node in document["nodes"]),
        wires=tuple(Wire(node, tuple(to), cost[node]) for node, to in targets.items()),
        memory_limit_bytes=float(document["maxSizePerFPGA"]),
        seconds_per_byte=1.0,
        send_rule="once",
        at_most=True,
    )


def _placement_node(node: Mapping[str, Any]) -> Node:
    is_backward, seconds = bool(int(node["isBackwardNode"])), float(node["fpgaLatency"])
    return Node(
        id=node["id"],
        forward_seconds=0.0 if is_backward else seconds,
        backward_seconds=seconds if is_backward else 0.0,
        weight_bytes=float(node.get("size", 0.0)),
        is_backward=is_backward,
        group=node.get("colorClass"),
    )


def _read_pipedream(text: str, bandwidth: float) -> Network:
    lines = [line for line in text.splitlines() if line.strip()]
    layers = [line.split(" -- ") for line in lines if not line[0].isspace()]
    figures = {name: _pipedream_figures(rest[1]) for name, *rest in layers}
    inputs = {name for name, kind, *_ in layers if kind.startswith("Input")}
    targets: dict[str, list[NodeId]] = defaultdict(list)
    for line in lines:
        if line[0].isspace():
            source, target = line.strip().split(" -- ")
            targets[source].append(target)
    return Network(
        nodes=tuple(
            Node(name) if name in inputs else _pipedream_node(name, figures[name])
            for name in figures
        ),
        wires=tuple(
            Wire(name, tuple(to), *[0.0 if name in inputs else figures[name][2]] * 2)
            for name, to in targets.items()
        ),
        seconds_per_byte=1 / bandwidth,
        send_rule="once",
        at_most=True,
    )


def _pipedream_figures(text: str) -> list[float]:
    """Milliseconds forward and backward, activation bytes, parameter bytes."""
    given = dict(item.split("=", 1) for item in text.split(", "))
    return [sum(map(float, given[f].strip("[]").split(";"))) for f in _PIPEDREAM_FIELDS]


def _pipedream_node(name: str, figures: list[float]) -> Node:
    forward, backward, activation, parameters = figures
    return Node(name, forward / 1e3, backward / 1e3, parameters, activation)
