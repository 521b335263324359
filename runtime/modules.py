"""Stage programs as live modules that hold the user's own parameters."""

from __future__ import annotations

import linecache
import types
from collections.abc import Mapping

import torch
from torch import nn

from stagecut.ir.errors import PlanError
from stagecut.ir.graph import Weight
from stagecut.ir.program import StageProgram


def instantiate(program: StageProgram, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """The stage as a module whose weights are the given tensors themselves, not copies.

    Args:
        program: The stage.
        tensors: Every weight of the stage under its canonical name.

    Raises:
        PlanError: weights are missing, or differ in shape or dtype; lists them all.
    """
    faults = [fault for weight in program.weights for fault in _mismatch(weight, tensors)]
    if faults:
        raise PlanError(
            f"stage {program.index} and the model do not belong together:\n"
            + "\n".join(f"  {fault}" for fault in faults)
        )
    with torch.device("meta"):
        stage: nn.Module = _load_class(program)()
    for weight in program.weights:
        for name in (weight.name, *weight.aliases):
            path, _, leaf = name.rpartition(".")
            setattr(stage.get_submodule(path), leaf, tensors[weight.name])
    return stage


def _load_class(program: StageProgram) -> type[nn.Module]:
    file = f"<stagecut stage_{program.index}.py>"
    # With its lines in the cache, a traceback shows the generated statement that failed.
    lines = program.source.splitlines(keepends=True)
    linecache.cache[file] = (len(program.source), None, lines, file)
    module = types.ModuleType(f"stage_{program.index}")
    exec(compile(program.source, file, "exec"), module.__dict__)
    loaded: type[nn.Module] = getattr(module, program.class_name)
    return loaded


def _mismatch(weight: Weight, tensors: Mapping[str, torch.Tensor]) -> list[str]:
    if weight.name not in tensors:
        return [f"{weight.name}: the model has no such {weight.kind}"]
    tensor = tensors[weight.name]
    shape = weight.type.hint_shape
    dtype = f"torch.{weight.type.dtype}"
    if tuple(tensor.shape) == shape and str(tensor.dtype) == dtype:
        return []
    return [
        f"{weight.name}: planned {dtype} {shape}, the model has {tensor.dtype} "
        f"{tuple(tensor.shape)}"
    ]
