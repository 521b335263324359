"""How ops are written: operators, methods and functions that people write themselves.

A spelling is used only where it calls the very same kernel with the very same arguments; every
other op is written as `aten.name.overload(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

_INFIX: Mapping[str, str] = MappingProxyType(
    {
        "aten.add.Tensor": "+", "aten.sub.Tensor": "-", "aten.mul.Tensor": "*",
        "aten.div.Tensor": "/", "aten.pow.Tensor_Scalar": "**", "aten.pow.Tensor_Tensor": "**",
        "aten.matmul.default": "@", "aten.bitwise_and.Tensor": "&", "aten.__and__.Tensor": "&",
        "aten.__or__.Tensor": "|", "aten.bitwise_or.Tensor": "|",
        "aten.eq.Tensor": "==", "aten.eq.Scalar": "==", "aten.ne.Tensor": "!=",
        "aten.ne.Scalar": "!=", "aten.lt.Tensor": "<", "aten.lt.Scalar": "<",
        "aten.le.Tensor": "<=", "aten.le.Scalar": "<=", "aten.gt.Tensor": ">",
        "aten.gt.Scalar": ">", "aten.ge.Tensor": ">=", "aten.ge.Scalar": ">=",
        "operator.add": "+", "operator.sub": "-", "operator.mul": "*", "operator.mod": "%",
        "operator.floordiv": "//", "operator.truediv": "/", "operator.pow": "**",
        "operator.eq": "==", "operator.ne": "!=", "operator.lt": "<", "operator.le": "<=",
        "operator.gt": ">", "operator.ge": ">=",
    }
)  # fmt: skip

# Functions whose parameters stand in the same order as the op's.
_FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "aten.linear.default": "F.linear", "aten.relu.default": "F.relu",
        "aten.gelu.default": "F.gelu", "aten.silu.default": "F.silu",
        "aten.conv1d.default": "F.conv1d", "aten.conv2d.default": "F.conv2d",
        "aten.conv3d.default": "F.conv3d", "aten.dropout.default": "F.dropout",
        "aten.tanh.default": "torch.tanh", "aten.sigmoid.default": "torch.sigmoid",
        "aten.exp.default": "torch.exp", "aten.rsqrt.default": "torch.rsqrt",
        "aten.cos.default": "torch.cos", "aten.sin.default": "torch.sin",
        "aten.neg.default": "torch.neg", "aten.cat.default": "torch.cat",
        "aten.stack.default": "torch.stack", "aten.softmax.int": "torch.softmax",
        "aten.addmm.default": "torch.addmm", "aten.bmm.default": "torch.bmm",
        "aten.mm.default": "torch.mm", "aten.where.self": "torch.where",
        "aten.scaled_dot_product_attention.default": "F.scaled_dot_product_attention",
        "math.floor": "math.floor", "math.ceil": "math.ceil", "math.trunc": "math.trunc",
    }
)  # fmt: skip

_METHODS: Mapping[str, str] = MappingProxyType(
    {
        "aten.view.default": "view", "aten.reshape.default": "reshape",
        "aten.expand.default": "expand", "aten.permute.default": "permute",
        "aten.transpose.int": "transpose", "aten.unsqueeze.default": "unsqueeze",
        "aten.squeeze.dim": "squeeze", "aten.contiguous.default": "contiguous",
        "aten.flatten.using_ints": "flatten", "aten.chunk.default": "chunk",
        "aten.split.Tensor": "split", "aten.select.int": "select", "aten.t.default": "t",
        "aten.sym_size.int": "size", "aten.detach.default": "detach",
        "aten.add_.Tensor": "add_", "aten.mul_.Tensor": "mul_", "aten.copy_.default": "copy_",
        "aten.relu_.default": "relu_", "aten.zero_.default": "zero_",
    }
)  # fmt: skip
# What a stage imports, and itself.
_NAMED = frozenset({"aten", "math", "operator", "torch", "self"})
# Methods that take their list of sizes as so many arguments.
_SPREAD = frozenset({"view", "reshape", "expand", "permute"})


def call(target: str, args: Sequence[str], kwargs: Sequence[tuple[str, str]]) -> str:
    """A call as an expression; `args` are written already.

    Args:
        target: The op's qualified target.
        args: Positional arguments, lists as `[a, b]`.
        kwargs: Keyword arguments.
    """
    keywords = [f"{name}={value}" for name, value in kwargs]
    rewritten = _rewritten(target, args) if not kwargs else None
    if rewritten is not None:
        return rewritten
    if target in _INFIX and len(args) == 2 and not kwargs:
        left, right = (f"({arg})" if " if " in arg else arg for arg in args)
        return f"{left} {_INFIX[target]} {right}"
    if target in _METHODS and args:
        return _method(_METHODS[target], args, keywords)
    function = _FUNCTIONS.get(target) or _qualified(target)
    return f"{function}({', '.join([*args, *keywords])})"


def _qualified(target: str) -> str:
    """A target as a stage can name it; operators of other libraries through torch.ops."""
    library, _, name = target.partition(".")
    if library == "builtins":
        return name
    # A module of the stage's own may be self["1"], with no dot behind self.
    named = library.partition("[")[0] in _NAMED
    return target if named else f"torch.ops.{target}"


def _rewritten(target: str, args: Sequence[str]) -> str | None:
    rewrite = _REORDERED.get(target)
    return None if rewrite is None else rewrite(args)


def _method(name: str, args: Sequence[str], keywords: Sequence[str]) -> str:
    receiver, *rest = args
    if name in _SPREAD and len(rest) == 1 and rest[0].startswith("[") and rest[0] != "[]":
        rest = [rest[0][1:-1]]
    return f"{receiver}.{name}({', '.join([*rest, *keywords])})"


def _layer_norm(args: Sequence[str]) -> str | None:
    # The sixth argument is a cuDNN switch that torch itself no longer reads.
    return f"F.layer_norm({', '.join(args[:5])})"


def _batch_norm(args: Sequence[str]) -> str | None:
    # The ninth argument froze torch.backends.cudnn.enabled; F.batch_norm reads it when it runs.
    x, weight, bias, mean, var, training, momentum, eps, _ = args
    return f"F.batch_norm({x}, {mean}, {var}, {weight}, {bias}, {training}, {momentum}, {eps})"


def _instance_norm(args: Sequence[str]) -> str | None:
    # As batch norm.
    x, weight, bias, mean, var, own, momentum, eps, _ = args
    return f"F.instance_norm({x}, {mean}, {var}, {weight}, {bias}, {own}, {momentum}, {eps})"


def _embedding(args: Sequence[str]) -> str | None:
    if len(args) > 3:
        return None
    weight, indices, *padding = args
    return f"F.embedding({', '.join([indices, weight, *padding])})"


def _two(function: str) -> Callable[[Sequence[str]], str | None]:
    return lambda args: f"{function}({args[0]}, {args[1]})" if len(args) == 2 else None


_REORDERED: Mapping[str, Callable[[Sequence[str]], str | None]] = MappingProxyType(
    {
        "aten.layer_norm.default": _layer_norm,
        "aten.batch_norm.default": _batch_norm,
        "aten.instance_norm.default": _instance_norm,
        "aten.embedding.default": _embedding,
        "aten.cross_entropy_loss.default": _two("F.cross_entropy"),
        "aten.mse_loss.default": _two("F.mse_loss"),
    }
)
