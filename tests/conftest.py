"""Options, marks and fixtures that every folder of tests shares."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Once more: a fixture that another test has set up draws nothing for this one."""
    _seed()


def _seed() -> None:
    """The same draws in a test whatever ran before it, so that a failure can be seen again."""
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """golden(name, text): `text` equals the file golden/<name> beside the test, byte for byte."""

    def check(name: str, text: str) -> None:
        path = Path(request.path).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        elif not path.exists():
            pytest.fail(f"{path} is missing; write it with pytest --update-golden and read it")
        else:
            assert text == path.read_text(), f"differs from {path}; if meant: --update-golden"

    return check
