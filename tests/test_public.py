"""The public surface, spelled out: a change here is a change for users."""

from __future__ import annotations

import inspect

import stagecut
from stagecut.ir.errors import ArgumentError, StagecutError

NAMES = ("Cluster", "Device", "Plan", "StagecutError", "load_stage", "partition", "pipeline")


def test_the_names() -> None:
    assert tuple(sorted(stagecut.__all__)) == NAMES
    assert tuple(dir(stagecut)) == NAMES
    assert all(getattr(stagecut, name) is not None for name in NAMES)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(stagecut, "cut")


def test_argument_errors_are_value_errors() -> None:
    assert issubclass(ArgumentError, ValueError)
    assert issubclass(ArgumentError, StagecutError)


def test_the_arguments_of_partition_come_in_the_promised_order() -> None:
    parameters = inspect.signature(stagecut.partition).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == ["model", "n_gpus", "example_args", "example_kwargs"]


def test_the_arguments_of_pipeline_come_in_the_promised_order() -> None:
    parameters = inspect.signature(stagecut.pipeline).parameters.values()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == ["plan", "model"]
