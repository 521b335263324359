"""What goes wrong, said to the person who can mend it."""

from __future__ import annotations


class StagecutError(Exception):
    """The base of every error Stagecut raises on purpose."""


class ArgumentError(StagecutError, ValueError):
    """An argument cannot be used as given."""


class TraceError(StagecutError):
    """The model cannot be traced; the message names the user's file and line."""


class GraphError(StagecutError):
    """A graph breaks a rule of the IR, or its text cannot be parsed."""


class InfeasibleError(StagecutError):
    """No plan satisfies the constraints; the message says which term is too big, and where."""


class ScheduleError(StagecutError):
    """A schedule is incomplete, out of order, or would deadlock."""


class PlanError(StagecutError):
    """A plan, an export folder or a model do not belong together."""


class UnsupportedError(StagecutError, NotImplementedError):
    """Not built; the message names what to use instead."""


class RuntimeFailure(StagecutError, RuntimeError):
    """A stage failed while running; the message names rank, stage, micro-batch and source line."""
