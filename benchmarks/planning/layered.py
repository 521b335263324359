"""Layered graphs of any size: transformers of 17 operations a layer."""

from __future__ import annotations

import numpy as np

from stagecut.ir.problem import Incidence, Problem

_LAYER = (0.05, 0.5, 0.5, 0.5, 0.1, 0.1, 0.1, 0.4, 0.1, 0.4, 0.5, 0.05, 0.05, 2.0, 0.2, 2.0, 0.05)
"""Seconds of the operations of one transformer layer."""
_INPUTS = (
    (-1,), (0,), (0,), (0,), (1,), (2,), (3,), (4, 5), (7,), (6, 8), (9,), (-1, 10), (11,), (12,),
    (13,), (14,), (11, 15),
)  # fmt: skip
"""Which operations of the layer each one reads; -1 is the layer before."""


def layered(n_layers: int, n_stages: int) -> Problem:
    """A transformer of 17 operations a layer: residuals, queries, keys and values fan out."""
    size = len(_LAYER)
    edges = [
        (layer * size + source, layer * size + target)
        for layer in range(n_layers)
        for target, sources in enumerate(_INPUTS)
        for source in sources
        if layer * size + source >= 0
    ]
    n = n_layers * size
    users: list[list[int]] = [[c] for c in range(n)]
    for source, target in edges:
        users[source].append(target)
    values = [members for members in users if len(members) > 1]
    seconds = np.tile(_LAYER, n_layers)
    each = Incidence(np.arange(n + 1), np.arange(n))
    return Problem(
        n_stages=n_stages,
        names=tuple(f"op{c}" for c in range(n)),
        forward_seconds=seconds[None] / 3,
        backward_seconds=seconds[None] * 2 / 3,
        edges=np.asarray(edges),
        values=Incidence.of(values),
        value_forward_bytes=np.full(len(values), 0.02),
        value_backward_bytes=np.full(len(values), 0.02),
        weights=each,
        weight_bytes=seconds,
        weight_sync_seconds=np.zeros(n),
        saved=each,
        saved_bytes=seconds,
        workspace_bytes=np.zeros(n),
        pins=np.full(n, -1),
        device_kind=np.zeros(n_stages, dtype=np.int64),
        memory_limit_bytes=np.full(n_stages, np.inf),
        in_flight=np.arange(n_stages, 0, -1),
        link_latency_seconds=np.full((n_stages, n_stages), 0.001),
        link_seconds_per_byte=np.ones((n_stages, n_stages)),
    )
