"""Graph to graph, and graph to problem."""

from stagecut.passes.costs import annotate
from stagecut.passes.dead import drop_dead
from stagecut.passes.functional import out_of_place
from stagecut.passes.groups import Clustering
from stagecut.passes.held import trained
from stagecut.passes.measuring import measure, step_timings
from stagecut.passes.memory import describe_stages, memory_of_stage
from stagecut.passes.optimizing import step_seconds
from stagecut.passes.parts import Part, parts_of
from stagecut.passes.problem import build_problem, stages_of_ops, weight_names
from stagecut.passes.profile import Profile, load_profile, save_profile
from stagecut.passes.recompute import (
    Group,
    groups_to_fit,
    modules_recomputed,
    recomputable,
    recomputed,
    relief_of,
)
from stagecut.passes.states import split_name, weight_bytes
from stagecut.passes.ties import TiedWeights, tied_users

__all__ = [
    "Clustering",
    "Group",
    "Part",
    "Profile",
    "TiedWeights",
    "annotate",
    "build_problem",
    "describe_stages",
    "drop_dead",
    "groups_to_fit",
    "load_profile",
    "measure",
    "memory_of_stage",
    "modules_recomputed",
    "out_of_place",
    "parts_of",
    "recomputable",
    "recomputed",
    "relief_of",
    "save_profile",
    "split_name",
    "stages_of_ops",
    "step_seconds",
    "step_timings",
    "tied_users",
    "trained",
    "weight_bytes",
    "weight_names",
]
