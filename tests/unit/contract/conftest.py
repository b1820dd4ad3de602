"""Rules and tests that start processes carry the mark for it."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    if "_process" in item.name:
        item.add_marker("processes")
