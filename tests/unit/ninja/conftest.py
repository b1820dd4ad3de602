"""The APIs of these tests as the project's URLs."""
# mypy: ignore-errors

from __future__ import annotations

import pytest

from tests.unit.http.conftest import atomic, policy
from tests.unit.ninja import urls
from tests.unit.views.conftest import api_for, collected

__all__ = ["atomic", "collected", "policy"]


@pytest.fixture(autouse=True)
def project(settings, policy):
    settings.ROOT_URLCONF = "tests.unit.ninja.urls"
    urls.calls.clear()


@pytest.fixture
def at():
    """``at(path)`` is a client of one operation, on the stack that it is at home in."""

    def make(path):
        return api_for("asgi" if "/a" in path[4:] else "wsgi", path, raises=False)

    return make
