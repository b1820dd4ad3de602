"""The pytest plugin that starts the run's own database server before Django reads its settings."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Generator
from functools import partial

import pytest

from tests.services import (
    LEG_VARIABLE,
    LEGS,
    MISSING_VARIABLE,
    SQLITE_VARIABLE,
    MissingService,
    current_leg,
    may_be_missing,
)
from tests.services.postgres import URL_VARIABLE, PostgresServer
from tests.services.processes import RUN_VARIABLE


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--only-database",
        action="store_true",
        help="only the tests that touch the database (for the second and third leg)",
    )


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, object, object]:
    """Run before pytest-django's hook of this name, which imports the settings."""
    options = early_config.known_args_namespace
    if not (options.help or options.version):
        _start(early_config)
    return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """Measure the xdist workers' coverage, not that of the processes which their tests start."""
    if hasattr(config, "workerinput"):
        for name in [name for name in os.environ if name.startswith("COVERAGE_PROCESS")]:
            del os.environ[name]


def pytest_report_header() -> str:
    missing = os.environ.get(MISSING_VARIABLE)
    return f"leg: {current_leg()}" + (f" (left out: {missing})" if missing else "")


def _start(config: pytest.Config) -> None:
    """
    Start what the leg needs, and tell children by environment variables where it is.

    In an xdist worker, or a pytest inside a test, the variables are there and nothing is started.
    """
    leg = current_leg()
    if leg not in LEGS:
        raise pytest.UsageError(f"{LEG_VARIABLE}={leg}: one of {', '.join(LEGS)}")
    if leg == "sqlite":
        if SQLITE_VARIABLE not in os.environ:
            directory = tempfile.mkdtemp(prefix="idempotency-sqlite-")
            config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
            _publish(config, SQLITE_VARIABLE, directory)
    elif URL_VARIABLE not in os.environ and MISSING_VARIABLE not in os.environ:
        try:
            server = PostgresServer(18 if leg == "postgres18" else 16)
        except MissingService as error:
            if not may_be_missing():
                raise pytest.UsageError(str(error)) from None
            _publish(config, MISSING_VARIABLE, str(error))
        else:
            config.add_cleanup(server.close)
            server.start()
            _publish(config, URL_VARIABLE, server.url)
    if RUN_VARIABLE not in os.environ:
        # After the server's start: what carries this mark was started by a test.
        _publish(config, RUN_VARIABLE, uuid.uuid4().hex)


def _publish(config: pytest.Config, name: str, value: str) -> None:
    os.environ[name] = value
    config.add_cleanup(partial(os.environ.__delitem__, name))
