"""Every set closed under precedence, listed as bit masks."""

from __future__ import annotations

from collections.abc import Sequence


def closed_sets(
    before: Sequence[int], after: Sequence[Sequence[int]], start: int, barred: int, most: int
) -> list[int] | None:
    """All closed sets that have the closed set `start` and nothing `barred`; None if too many.

    `before` [n] is a mask of what directly precedes each node, `after` [n] lists what follows it.
    More than `most` are too many.
    """
    fixed = start | barred
    ready = (c for c, needed in enumerate(before) if not fixed >> c & 1 and not needed & ~start)
    found = {start: tuple(ready)}
    pending = [start]
    while pending:
        closed = pending.pop()
        for c in found[closed]:
            larger = closed | 1 << c
            if larger in found:
                continue
            opened = [b for b in after[c] if not before[b] & ~larger and not barred >> b & 1]
            found[larger] = (*(r for r in found[closed] if r != c), *opened)
            pending.append(larger)
            if len(found) > most:
                return None
    return list(found)
