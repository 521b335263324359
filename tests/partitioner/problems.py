"""Random problems and the shortest way to write one down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stagecut.ir.problem import Incidence, Problem


def problem(
    n_stages: int,
    seconds: Sequence[float],
    edges: Sequence[tuple[int, int]] = (),
    values: Sequence[tuple[Sequence[int], float]] | None = None,
    **fields: Any,
) -> Problem:
    """A problem of one device kind; values are ((producer, consumers...), seconds to move).

    Without `values` each cluster's output costs 0.1 and goes to its successors. `weights` and
    `saved` are lists of (users, bytes). Any other field of Problem may be given by name.
    """
    n = len(seconds)
    if values is None:
        after = [[b for a, b in sorted(set(edges)) if a == c] for c in range(n)]
        values = [((c, *after[c]), 0.1) for c in range(n) if after[c]]
    weights, saved = fields.pop("weights", ()), fields.pop("saved", ())
    costs = np.asarray([cost for _, cost in values], dtype=float)
    given: dict[str, Any] = {
        "n_stages": n_stages,
        "names": tuple(f"op{c}" for c in range(n)),
        "forward_seconds": np.asarray([seconds], dtype=float),
        "backward_seconds": np.zeros((1, n)),
        "edges": np.asarray(edges, dtype=np.int64).reshape(-1, 2),
        "values": Incidence.of([list(members) for members, _ in values]),
        "value_forward_bytes": costs,
        "value_backward_bytes": np.zeros(len(values)),
        "weights": Incidence.of([list(users) for users, _ in weights]),
        "weight_bytes": np.asarray([size for _, size in weights], dtype=float),
        "weight_sync_seconds": np.zeros(len(weights)),
        "saved": Incidence.of([list(users) for users, _ in saved]),
        "saved_bytes": np.asarray([size for _, size in saved], dtype=float),
        "workspace_bytes": np.zeros(n),
        "pins": np.full(n, -1),
        "device_kind": np.zeros(n_stages, dtype=np.int64),
        "memory_limit_bytes": np.full(n_stages, np.inf),
        "in_flight": np.ones(n_stages, dtype=np.int64),
        "link_latency_seconds": np.zeros((n_stages, n_stages)),
        "link_seconds_per_byte": np.ones((n_stages, n_stages)),
    }
    arrays = {
        name: np.asarray(item) if isinstance(item, list) else item for name, item in fields.items()
    }
    return Problem(**(given | arrays))


def random_problem(seed: int, n: int, n_stages: int, density: float = 0.3) -> Problem:
    """A problem in which every kind of cost and constraint may occur."""
    draw = np.random.default_rng(seed)
    edges = [(a, b) for b in range(n) for a in range(b) if draw.random() < density]
    after = [[b for a, b in edges if a == c] for c in range(n)]
    values = [((c, *after[c]), float(draw.integers(0, 20))) for c in range(n) if after[c]]
    kinds = int(draw.integers(1, 3))
    uniform_links = draw.random() < 0.5
    link = np.ones((n_stages, n_stages)) if uniform_links else draw.uniform(0.5, 2, [n_stages] * 2)
    shared = [
        (sorted(set(draw.integers(0, n, 2).tolist())), float(draw.integers(1, 9)))
        for _ in range(int(draw.integers(0, 3)))
    ]
    own = [([c], float(draw.integers(0, 9))) for c in range(n)]
    pins = np.full(n, -1)
    if draw.random() < 0.3:
        pins[int(draw.integers(n))] = int(draw.integers(n_stages))
    backward_bytes = np.asarray([cost * draw.integers(0, 2) for _, cost in values], dtype=float)
    roomy = draw.random() < 0.5
    return problem(
        n_stages,
        [float(x) for x in draw.integers(0, 30, n)],
        edges,
        values,
        forward_seconds=draw.integers(0, 30, (kinds, n)).astype(float),
        backward_seconds=draw.integers(0, 30, (kinds, n)).astype(float),
        value_backward_bytes=backward_bytes,
        weights=own + shared,
        weight_sync_seconds=draw.integers(0, 4, n + len(shared)).astype(float),
        saved=own,
        workspace_bytes=draw.integers(0, 5, n).astype(float),
        pins=pins,
        device_kind=draw.integers(0, kinds, n_stages),
        memory_limit_bytes=np.full(n_stages, np.inf if roomy else float(draw.integers(20, 90))),
        in_flight=np.arange(n_stages, 0, -1),
        link_latency_seconds=draw.integers(0, 3, (n_stages, n_stages)).astype(float)
        if not uniform_links
        else np.zeros((n_stages, n_stages)),
        link_seconds_per_byte=link,
        send_rule="once" if draw.random() < 0.5 else "per_consumer",
        allow_empty=bool(draw.random() < 0.2),
    )


def chain(n: int, n_stages: int, seed: int = 0) -> Problem:
    """A chain with a residual skip over every third cluster."""
    draw = np.random.default_rng(seed)
    edges = [(c, c + 1) for c in range(n - 1)] + [(c, c + 3) for c in range(0, n - 3, 3)]
    return problem(n_stages, draw.uniform(1, 5, n).tolist(), edges)
