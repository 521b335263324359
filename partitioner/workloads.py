"""Reads partitioning problems from files, and solves them.

placement   JSON published with Tarnawski et al., "Efficient Algorithms for Device Placement of DNN
            Graph Operators" (NeurIPS 2020). Accelerators only: `fpgaLatency` is a node's time, a
            `colorClass` keeps nodes together, an edge's `cost` is the time to move its source's
            output, charged once to every stage that touches it. At most K stages.
pipedream   `graph.txt` profiles published with PipeDream (Narayanan et al., SOSP 2019): forward and
            backward milliseconds, activation and parameter bytes of each layer. At most K stages.
stagecut    our own JSON, exactly K stages; all but "stagecut", "nodes" and "id" may be left out:

    {"stagecut": 1,
     "nodes": [{"id": "a", "forward_seconds": 0.1, "backward_seconds": 0.2, "weight_bytes": 10,
                "saved_bytes": 5, "stage": 0, "group": "g"}, ...],
     "values": [{"from": "a", "to": ["b", "c"], "bytes": 100, "gradient_bytes": 100}, ...],
     "memory_limit_bytes": 1e9, "latency_seconds": 1e-5, "bytes_per_second": 1e10}
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stagecut.ir.errors import ArgumentError
from stagecut.partitioner.network import Network, Node, NodeId, Wire, contract
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
    """Cuts the network in a file; `bandwidth`, in bytes a second, is for `pipedream` files.

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
    try:
        if format == "pipedream":
            return _read_pipedream(text, bandwidth)
        document = json.loads(text)
        return _read_placement(document) if format == "placement" else _read_stagecut(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ArgumentError):
            raise
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ArgumentError(f"{path} cannot be read as {format}: {what}") from error


def _format_of(path: str | Path, text: str) -> Format:
    if not text.lstrip().startswith("{"):
        if " -- " in text:
            return "pipedream"
        raise ArgumentError(f"{path} is neither JSON nor a profile of PipeDream's (graph.txt)")
    if '"fpgaLatency"' in text:
        return "placement"
    if '"stagecut"' in text:
        return "stagecut"
    raise ArgumentError(
        f'{path} is JSON but has neither "fpgaLatency" (format placement) nor "stagecut" (our own)'
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


def _read_pipedream(text: str, bandwidth: float | None) -> Network:
    if bandwidth is None or not bandwidth > 0:
        raise ArgumentError("pipedream profiles have no link; give bandwidth in bytes a second")
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


def _read_stagecut(document: Mapping[str, Any]) -> Network:
    if document["stagecut"] != 1:
        raise ArgumentError(f"version {document['stagecut']!r} is not 1, the one known here")
    per_second = float(document.get("bytes_per_second", np.inf))
    return Network(
        nodes=tuple(
            Node(
                id=node["id"],
                forward_seconds=_figure(node, "forward_seconds"),
                backward_seconds=_figure(node, "backward_seconds"),
                weight_bytes=_figure(node, "weight_bytes"),
                saved_bytes=_figure(node, "saved_bytes"),
                group=node.get("group"),
                pin=int(node.get("stage", -1)),
            )
            for node in document["nodes"]
        ),
        wires=tuple(
            Wire(
                value["from"],
                tuple(value["to"]),
                _figure(value, "bytes"),
                _figure(value, "gradient_bytes"),
            )
            for value in document.get("values", ())
        ),
        memory_limit_bytes=float(document.get("memory_limit_bytes", np.inf)),
        latency_seconds=_figure(document, "latency_seconds"),
        seconds_per_byte=1 / per_second,
    )


def _figure(item: Mapping[str, Any], name: str) -> float:
    figure = float(item.get(name, 0.0))
    if not (0 <= figure < np.inf):
        raise ArgumentError(f"{name} is {figure} in {dict(item)}; give a number of 0 or more")
    return figure
