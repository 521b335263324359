"""`pytest -m zoo` runs every model; otherwise only the ten quickest run."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "zoo" in str(config.getoption("markexpr")):
        return
    left = [item for item in items if item.get_closest_marker("zoo")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
