"""Everything that cuts: problems in, assignments with certificates out."""

from stagecut.partitioner.evaluate import evaluate
from stagecut.partitioner.explain import explain
from stagecut.partitioner.folding import Folded, best_fold, device_loads
from stagecut.partitioner.placement import Placement, solve_placed
from stagecut.partitioner.relief import lacks_memory, may_gain, solve_relieved
from stagecut.partitioner.solve import METHODS, solve

__all__ = [
    "METHODS",
    "Folded",
    "Placement",
    "best_fold",
    "device_loads",
    "evaluate",
    "explain",
    "lacks_memory",
    "may_gain",
    "solve",
    "solve_placed",
    "solve_relieved",
]
