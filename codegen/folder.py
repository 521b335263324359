"""The export folder: one `.py` and one `.safetensors` a stage, the plan, and a README.

    stages/
      plan.json            stage_0.py            stage_1.py            README.md
                           stage_0.safetensors   stage_1.safetensors

Nothing in it is ever unpickled. A reader loads only its own stage's tensors.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from stagecut.codegen.generate import generate
from stagecut.codegen.own import (
    Description,
    describe_modules,
    imported_classes,
    with_modules,
)
from stagecut.codegen.source import OPAQUE
from stagecut.ir.errors import PlanError, UnsupportedError
from stagecut.ir.plan import Plan, load_plan
from stagecut.ir.program import PipelineProgram, StageProgram

_PLAN = "plan.json"
_MODULES = "modules.json"


def write_folder(
    folder: Path,
    plan_json: str,
    program: PipelineProgram,
    tensors: Mapping[str, torch.Tensor],
    modules: Mapping[str, nn.Module] | None = None,
) -> None:
    """Writes an export folder; an earlier export there is replaced only once the new one is whole.

    Args:
        folder: Where to.
        plan_json: The plan.
        program: Its stages.
        tensors: Their weights.
        modules: The modules of the user's own that the stages call, by path, where the stages may
            import their classes.

    Raises:
        PlanError: weights have no values (meta device), or the folder holds something else.
        UnsupportedError: a stage calls modules of the user's own, whose code it does not hold, or
            whose attributes cannot be written down.
    """
    if modules is None:
        _check_own_code(program)
    described = describe_modules(modules or {})
    program = _importing(program, described)
    _check_target(folder)
    _check_values(program, tensors)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        made = Path(scratch) / "export"
        made.mkdir()
        (made / _PLAN).write_text(plan_json)
        (made / "README.md").write_text(_readme(program, described))
        if described:
            (made / _MODULES).write_text(json.dumps(described, indent=1))
        for stage in program.stages:
            (made / f"stage_{stage.index}.py").write_text(stage.source)
            held = {w.name: _own(tensors[w.name]) for w in stage.weights}
            save_file(held, made / f"stage_{stage.index}.safetensors")
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)


def read_folder(folder: Path, allow_imports: bool = False) -> tuple[Plan, PipelineProgram]:
    """The plan of an export folder and its stages, checked against the files.

    Raises:
        PlanError: files are missing, or the stages were changed since they were written.
        UnsupportedError: the stages import classes of the user's own, and may not.
    """
    try:
        plan = load_plan((folder / _PLAN).read_text())
    except OSError as error:
        raise PlanError(f"{folder} is no export folder: {error}") from error
    program = generate(plan.graph, plan.stages_of_ops, plan.n_stages)
    program = _importing(program, _described(folder, program, allow_imports))
    faults = [fault for stage in program.stages for fault in _changes(folder, stage)]
    if faults:
        raise PlanError(
            f"{folder} is not as plan.export wrote it:\n"
            + "\n".join(f"  {fault}" for fault in faults)
            + "\nExport again; a stage that was edited by hand is imported as any Python file."
        )
    return plan, program


def stage_tensors(folder: Path, stage: StageProgram) -> dict[str, torch.Tensor]:
    """The weights of one stage, read from its own file alone.

    Raises:
        PlanError: the file is missing, damaged, or not of this stage.
    """
    path = folder / f"stage_{stage.index}.safetensors"
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise PlanError(f"{path} cannot be read: {error}") from error
    faults = [
        f"{w.name} is missing"
        if w.name not in found
        else f"{w.name} is {found[w.name].dtype} {tuple(found[w.name].shape)}, planned {w.type}"
        for w in stage.weights
        if w.name not in found
        or tuple(found[w.name].shape) != w.type.hint_shape
        or str(found[w.name].dtype) != f"torch.{w.type.dtype}"
    ]
    if faults:
        raise PlanError(f"{path} is not of this plan:\n" + "\n".join(f"  {f}" for f in faults))
    for weight in stage.weights:
        if weight.kind == "parameter":
            tensor = found[weight.name]
            found[weight.name] = nn.Parameter(tensor, requires_grad=weight.trainable)
    return found


def load_stage(folder: str | Path, stage: int, *, allow_imports: bool = False) -> nn.Module:
    """One stage of an export folder as a module with its weights.

    Args:
        folder: What `plan.export` wrote.
        stage: The stage's number.
        allow_imports: Whether the folder's stages may import classes of the user's own, which
            its README names.

    Raises:
        PlanError: the folder has no such stage, or was changed.
        UnsupportedError: the stages import classes, and may not.
    """
    path = Path(folder)
    _, program = read_folder(path, allow_imports)
    if not 0 <= stage < len(program.stages):
        raise PlanError(f"{folder} has stages 0 to {len(program.stages) - 1}, not {stage}")
    chosen = program.stages[stage]
    tensors = stage_tensors(path, chosen)
    with torch.device("meta"):
        module = _import(path / f"stage_{stage}.py", chosen.class_name)()
    for weight in chosen.weights:
        for name in (weight.name, *weight.aliases):
            parent, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(parent), leaf, tensors[weight.name])
    return module


def _import(path: Path, class_name: str) -> type[nn.Module]:
    spec = importlib.util.spec_from_file_location(f"stagecut_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise PlanError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    loaded: type[nn.Module] = getattr(module, class_name)
    return loaded


def _changes(folder: Path, stage: StageProgram) -> list[str]:
    name = f"stage_{stage.index}"
    missing = [f for f in (f"{name}.py", f"{name}.safetensors") if not (folder / f).exists()]
    if missing:
        return [f"{file} is missing" for file in missing]
    if (folder / f"{name}.py").read_text() != stage.source:
        return [f"{name}.py was changed, or written by another version"]
    return []


def _check_own_code(program: PipelineProgram) -> None:
    calling = [str(s.index) for s in program.stages if OPAQUE in s.source]
    if calling:
        raise UnsupportedError(
            f"stages {', '.join(calling)} call modules that could not be traced and run as they "
            "are; a folder of stages needs torch alone and does not hold the user's code. Run them "
            "with pipeline(plan, model), or let the stages import their classes: "
            "plan.export(folder, model, allow_imports=True)"
        )


def _described(
    folder: Path, program: PipelineProgram, allow_imports: bool
) -> dict[str, Description]:
    """The modules of the user's own that a folder's stages call."""
    if not any(OPAQUE in stage.source for stage in program.stages):
        return {}
    try:
        found: dict[str, Description] = json.loads((folder / _MODULES).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise PlanError(f"{folder / _MODULES} cannot be read: {error}") from error
    if not allow_imports:
        raise UnsupportedError(
            f"the stages in {folder} import {_classes(found)}; if you trust the folder, load it "
            "with allow_imports=True"
        )
    return found


def _importing(program: PipelineProgram, described: Mapping[str, Description]) -> PipelineProgram:
    stages = tuple(replace(s, source=with_modules(s.source, described)) for s in program.stages)
    return replace(program, stages=stages)


def _classes(described: Mapping[str, Description]) -> str:
    names = (name for made in described.values() for name in imported_classes(made))
    return ", ".join(dict.fromkeys(name.replace(":", ".") for name in names))


def _check_target(folder: Path) -> None:
    taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if taken and not (folder / _PLAN).exists():
        raise PlanError(f"{folder} exists and is no export folder; give another name")


def _check_values(program: PipelineProgram, tensors: Mapping[str, torch.Tensor]) -> None:
    empty = [w.name for stage in program.stages for w in stage.weights if tensors[w.name].is_meta]
    if empty:
        names = ", ".join(list(dict.fromkeys(empty))[:5])
        raise PlanError(
            f"{len(empty)} weights are on the meta device and have no values ({names}, …); export "
            "with a model that is loaded"
        )


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, and not a piece of something larger, as safetensors asks."""
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    plain = tensor.detach().contiguous()
    return plain if whole else plain.clone()


def _readme(program: PipelineProgram, described: Mapping[str, Description]) -> str:
    files = "\n".join(
        f"- `stage_{s.index}.py`, `stage_{s.index}.safetensors`: {len(s.weights)} weights"
        for s in program.stages
    )
    return f"""# Pipeline stages, written by Stagecut

{files}
- `plan.json`: the plan; `stagecut.pipeline("this folder")` runs it

{_needs(described)}

```python
from safetensors.torch import load_file
from stage_0 import Stage0

stage = Stage0()
stage.load_state_dict(load_file("stage_0.safetensors"), strict=False)
```
"""


def _needs(described: Mapping[str, Description]) -> str:
    if not described:
        return "A stage needs torch alone:"
    return (
        f"Stages import the code of the modules that could not be traced ({_classes(described)}); "
        "`modules.json` has their attributes. Load the folder with `allow_imports=True`, or:"
    )
