"""Train and eval mode: modules that the user froze in eval, and a whole model that is in eval."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from stagecut.ir.errors import PlanError
from stagecut.ir.graph import Arg, ByMode, Graph, Mode, Op
from stagecut.ir.plan import Plan
from stagecut.passes.resolve import opaque_path

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DROPOUTS = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip


def eval_note(model: nn.Module, graph: Graph) -> tuple[str, ...]:
    """That a model in eval mode was planned to train, where its ops depend on the mode."""
    asked = any(_by_mode(op) or opaque_path(op.target) is not None for op in graph.ops)
    if model.training or not graph.training or not asked:
        return ()
    return (
        "the model was in eval mode; the pipeline trains it in train mode, all its modules. To "
        "keep some of them in eval, call model.train() and then .eval() of those, before planning; "
        "for inference, plan with training=False",
    )


def check_modes(plan: Plan, model: nn.Module) -> None:
    """Returns if the modules of a model in train mode are frozen as they were when planned.

    Told by the ops that a module's mode changes: modules without such are not compared.

    Raises:
        PlanError: names every module that was in another mode.
    """
    if not plan.graph.training or not model.training:
        return
    modules = dict(model.named_modules())
    follows = {op.scope for op in plan.graph.ops if _by_mode(op)}
    faults = [
        f"{path} was in train mode and is in eval mode"
        for path in sorted(follows & set(modules))
        if not modules[path].training
    ]
    faults += [
        f"{path} was in eval mode and is in train mode"
        for path in sorted({op.scope for op in plan.graph.ops if _frozen(op, modules)} - follows)
    ]
    if faults:
        raise PlanError(
            f"{type(model).__name__} has modules in another mode than when it was planned:\n"
            + "\n".join(f"  {fault}" for fault in faults[:20])
            + "\nset their modes as they were, or plan again"
        )


def _by_mode(op: Op) -> bool:
    given = (*op.args, *dict(op.kwargs).values())
    return any(isinstance(c, Mode) for c in op.context) or any(_has_choice(arg) for arg in given)


def _has_choice(arg: Arg) -> bool:
    if isinstance(arg, tuple):
        return any(_has_choice(one) for one in arg)
    return isinstance(arg, ByMode)


def _frozen(op: Op, modules: Mapping[str, nn.Module]) -> bool:
    """Whether it is the op of one of torch's own modules, traced in eval, that is in train now."""
    module = modules.get(op.scope)
    if module is None or not module.training or not type(module).__module__.startswith("torch.nn."):
        return False
    if isinstance(module, _BATCH_NORMS) and op.target.startswith("aten.batch_norm"):
        return len(op.args) > 5 and op.args[5] is False
    if isinstance(module, _DROPOUTS) and "dropout" in op.target:
        return len(op.args) > 2 and op.args[2] is False
    return False
