"""Everything that cuts: problems in, assignments with certificates out."""

from stagecut.partitioner.evaluate import evaluate
from stagecut.partitioner.solve import solve

__all__ = ["evaluate", "solve"]
