"""Real servers and processes that the tests start, break and stop."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LEGS = ("postgres18", "postgres16", "sqlite", "mariadb", "browser")

# Set by people and by CI.
LEG_VARIABLE = "IDEMPOTENCY_TEST_LEG"
ALLOW_MISSING_VARIABLE = "IDEMPOTENCY_TEST_ALLOW_MISSING"
# Set by the pytest plugin, for settings and child processes.
MISSING_VARIABLE = "IDEMPOTENCY_TEST_MISSING"
SQLITE_VARIABLE = "IDEMPOTENCY_TEST_SQLITE_DIRECTORY"
# Set for child processes that are to use the databases of the running test: JSON, alias to name.
DATABASES_VARIABLE = "IDEMPOTENCY_TEST_DATABASES"


class MissingService(Exception):
    """A server that the tests need is not on this machine; the message says how to install it."""


def current_leg() -> str:
    """The database, or the browser, that this run is about: one of LEGS."""
    return os.environ.get(LEG_VARIABLE) or LEGS[0]


def may_be_missing() -> bool:
    return os.environ.get(ALLOW_MISSING_VARIABLE) == "1"


def or_skip(start: Callable[[], T]) -> T:
    """Call `start`; a server that this machine lacks skips the test if that is allowed."""
    import pytest

    try:
        return start()
    except MissingService as error:
        if may_be_missing():
            pytest.skip(str(error))
        raise
