"""The pytest plugin that records which lines each test runs, and how long it takes."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from coverage import Coverage

#: Where the seconds of the tests that passed are written.
RECORD_VARIABLE = "IDEMPOTENCY_TEST_RECORD"

_seconds: Counter[str] = Counter()
_not_passed: set[str] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let what runs from now on, fixtures too, be this test's."""
    coverage = Coverage.current()
    assert coverage is not None, "pytest runs under coverage"
    coverage.switch_context(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] += report.duration  # type: ignore[assignment]
    if not report.passed:
        _not_passed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    passed = {test: seconds for test, seconds in _seconds.items() if test not in _not_passed}
    Path(os.environ[RECORD_VARIABLE]).write_text(json.dumps(passed))
