"""The public surface: few names, frozen here, and no torch until one is used."""

from __future__ import annotations

import inspect
import subprocess
import sys

import stagecut

NAMES = ["Cluster", "Device", "Plan", "StagecutError", "load_stage", "partition", "pipeline"]


def test_names() -> None:
    assert sorted(stagecut.__all__) == NAMES
    assert all(getattr(stagecut, name) is not None for name in NAMES)


def test_argument_errors_are_value_errors() -> None:
    from stagecut.ir.errors import ArgumentError

    assert issubclass(ArgumentError, ValueError)
    assert issubclass(ArgumentError, stagecut.StagecutError)


def test_options_are_by_keyword() -> None:
    kinds = [p.kind for p in inspect.signature(stagecut.partition).parameters.values()]
    assert kinds[4:] == [inspect.Parameter.KEYWORD_ONLY] * len(kinds[4:])


def test_light_imports_load_no_torch() -> None:
    code = "import sys, stagecut, stagecut.partitioner, stagecut.ir.plan; "
    code += "assert 'torch' not in sys.modules, 'torch'"
    subprocess.run([sys.executable, "-c", code], check=True)
