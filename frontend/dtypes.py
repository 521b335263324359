"""Operands of unlike dtypes, which fake tensors let pass and kernels refuse.

A `long` example for a model that takes floats would otherwise fail in the first step only.
"""

from __future__ import annotations

import torch
from torch import fx

from stagecut.frontend.sources import source_of
from stagecut.frontend.symbols import dtype_name
from stagecut.ir.errors import TraceError
from stagecut.ir.graph import Autocast, Context

# Kernels that take operands of one dtype alone.
_ALIKE = frozenset(
    {
        "aten::linear", "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::matmul",
        "aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::convolution",
        "aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d",
    }
)  # fmt: skip


def check_operands(node: fx.Node, context: tuple[Context, ...]) -> None:
    """Returns if an op's operands go together.

    Raises:
        TraceError: a product of unlike dtypes, outside autocast.
    """
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.name not in _ALIKE:
        return
    if any(isinstance(region, Autocast) and region.enabled for region in context):
        return
    operands = [arg.meta.get("val") for arg in node.args if isinstance(arg, fx.Node)]
    found = [dtype_name(o.dtype) for o in operands if isinstance(o, torch.Tensor)]
    if len(set(found)) > 1:
        raise TraceError(
            f"{source_of(node) or 'the model'}: {schema.name.removeprefix('aten::')} of "
            f"{' and '.join(dict.fromkeys(found))}, which torch cannot compute; give an example "
            "of the dtype that the model takes, or convert the tensor"
        )
