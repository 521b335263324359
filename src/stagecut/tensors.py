"""The tensors behind a plan's weights: the model's own, and the constants that the plan carries."""

from __future__ import annotations

import base64
from collections.abc import Mapping

import torch
from torch import nn

from stagecut.ir.errors import PlanError
from stagecut.ir.plan import Constant, Plan


def weights_of(plan: Plan, model: nn.Module) -> dict[str, torch.Tensor]:
    """Every weight of a plan under its canonical name, as the model holds it.

    Raises:
        PlanError: the model lacks weights that were planned, or ties others than it did.
    """
    held: dict[str, torch.Tensor] = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
        **{constant.name: tensor_of(constant) for constant in plan.constants},
    }
    faults = []
    for weight in plan.graph.weights:
        missing = [name for name in (weight.name, *weight.aliases) if name not in held]
        faults += [f"{name} is not in the model" for name in missing]
        faults += [
            f"{name} was tied to {weight.name} when planned and is not now"
            for name in weight.aliases
            if not missing and held[name] is not held[weight.name]
        ]
    planned = {name for w in plan.graph.weights for name in (w.name, *w.aliases)}
    faults += [f"{name} is not in the plan" for name in held if name not in planned]
    if faults:
        raise PlanError(
            f"{type(model).__name__} is not the model that was planned:\n"
            + "\n".join(f"  {fault}" for fault in faults[:20])
        )
    return {weight.name: held[weight.name] for weight in plan.graph.weights}


def check_weights(plan: Plan, tensors: Mapping[str, torch.Tensor]) -> None:
    """Returns if the tensors of `weights_of` have the shapes and dtypes that were planned.

    Raises:
        PlanError: all that differ.
    """
    faults = [
        f"{w.name} was planned as {w.type}, the model has {t.dtype} {tuple(t.shape)}"
        for w in plan.graph.weights
        for t in [tensors[w.name]]
        if tuple(t.shape) != w.type.hint_shape or str(t.dtype) != f"torch.{w.type.dtype}"
    ]
    if faults:
        raise PlanError(
            "the plan and the model do not belong together:\n"
            + "\n".join(f"  {fault}" for fault in faults[:20])
        )


def constants_of(tensors: Mapping[str, torch.Tensor]) -> tuple[Constant, ...]:
    """Constant tensors as plain data."""
    return tuple(_constant(name, tensor) for name, tensor in tensors.items())


def tensor_of(constant: Constant) -> torch.Tensor:
    """The tensor of plain data; on the meta device where its values are unknown."""
    dtype = getattr(torch, constant.dtype)
    if not constant.data:
        return torch.empty(constant.shape, dtype=dtype, device="meta")
    raw = torch.frombuffer(bytearray(base64.b64decode(constant.data)), dtype=torch.uint8)
    return raw.view(dtype).reshape(constant.shape).clone()


def _constant(name: str, tensor: torch.Tensor) -> Constant:
    data = ""
    if not tensor.is_meta and tensor.numel():
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        data = base64.b64encode(flat.numpy().tobytes()).decode()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Constant(name, dtype, tuple(tensor.shape), data)
