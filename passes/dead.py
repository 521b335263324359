"""Drops ops whose results nobody reads and that change nothing.

%a = aten.add.Tensor(%x, 1)          (dropped: nobody reads %a)
%b = aten.mul.Tensor(%x, 2)
return (%b)
"""

from __future__ import annotations

from dataclasses import replace

from stagecut.ir.graph import Graph, Ref, op_refs, refs


def drop_dead(graph: Graph) -> Graph:
    """The graph without pure ops that no output and no op with an effect depends on.

    A random op is kept where it is read; unread, its draw goes with it.
    """
    needed = {ref.name for output in graph.outputs for ref in refs(output) if isinstance(ref, Ref)}
    kept = []
    for op in reversed(graph.ops):
        wanted = any(value.name in needed for value in op.results)
        if wanted or op.effects.mutates or not op.results:
            kept.append(op)
            needed.update(ref.name for ref in op_refs(op) if isinstance(ref, Ref))
    return replace(graph, ops=tuple(reversed(kept)))
