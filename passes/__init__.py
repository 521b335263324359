"""Graph to graph, and graph to problem."""

from stagecut.passes.costs import annotate
from stagecut.passes.dead import drop_dead
from stagecut.passes.functional import out_of_place
from stagecut.passes.groups import Clustering
from stagecut.passes.measuring import measure
from stagecut.passes.memory import describe_stages
from stagecut.passes.problem import build_problem, stages_of_ops
from stagecut.passes.profile import Profile, load_profile, save_profile
from stagecut.passes.states import weight_bytes

__all__ = [
    "Clustering",
    "Profile",
    "annotate",
    "build_problem",
    "describe_stages",
    "drop_dead",
    "load_profile",
    "measure",
    "out_of_place",
    "save_profile",
    "stages_of_ops",
    "weight_bytes",
]
