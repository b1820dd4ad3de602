"""The pytest plugin that starts the run's own database server before Django reads its settings."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest

from tests.services import (
    LEG_VARIABLE,
    LEGS,
    MISSING_VARIABLE,
    SQLITE_VARIABLE,
    MissingService,
    current_leg,
    mariadb,
    may_be_missing,
)
from tests.services.mariadb import MariaDBServer
from tests.services.postgres import URL_VARIABLE, PostgresServer
from tests.services.processes import ROOT, RUN_VARIABLE


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, object, object]:
    options = early_config.known_args_namespace
    if not (options.help or options.version):
        if LEG_VARIABLE not in os.environ and _only_unit_tests(options.file_or_dir):
            _publish(early_config, LEG_VARIABLE, "sqlite")
        _start(early_config)
    return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """
    Measure the xdist workers' coverage, not that of the processes which their tests start.

    And let these hear of Ctrl-C, also in a run that a shell has started in the background.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        for name in [name for name in os.environ if name.startswith("COVERAGE_PROCESS")]:
            del os.environ[name]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With a browser under way only its own tests run: it has an event loop in the main thread."""
    if current_leg() == "browser":
        markers = {item: item.get_closest_marker("leg") for item in items}
        own = [item for item, marker in markers.items() if marker and "browser" in marker.args]
        config.hook.pytest_deselected(items=[item for item in items if item not in own])
        items[:] = own


def pytest_report_header() -> str:
    missing = os.environ.get(MISSING_VARIABLE)
    return f"leg: {current_leg()}" + (f" (left out: {missing})" if missing else "")


def _only_unit_tests(named: list[str]) -> bool:
    """Whether the command line names nothing but tests that need no server."""
    unit = ROOT / "tests" / "unit"
    paths = [Path(name.partition("::")[0]).resolve() for name in named]
    return bool(paths) and all(path.is_relative_to(unit) for path in paths)


def _start(config: pytest.Config) -> None:
    """
    Start what the leg needs, and tell children by environment variables where it is.

    In an xdist worker, or a pytest inside a test, the variables are there and nothing is started.
    """
    leg = current_leg()
    if leg not in LEGS:
        raise pytest.UsageError(f"{LEG_VARIABLE}={leg}: one of {', '.join(LEGS)}")
    variable = mariadb.URL_VARIABLE if leg == "mariadb" else URL_VARIABLE
    if leg == "sqlite":
        if SQLITE_VARIABLE not in os.environ:
            # In memory where there is a folder for that: no commit of a test waits for a disk.
            memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
            directory = tempfile.mkdtemp(prefix="idempotency-sqlite-", dir=memory)
            config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
            _publish(config, SQLITE_VARIABLE, directory)
    elif variable not in os.environ and MISSING_VARIABLE not in os.environ:
        server: MariaDBServer | PostgresServer
        try:
            if leg == "mariadb":
                server = MariaDBServer()
            else:
                server = PostgresServer(16 if leg == "postgres16" else 18)
        except MissingService as error:
            if not may_be_missing():
                raise pytest.UsageError(str(error)) from None
            _publish(config, MISSING_VARIABLE, str(error))
        else:
            config.add_cleanup(server.close)
            server.start()
            _publish(config, variable, server.url)
    if RUN_VARIABLE not in os.environ:
        # After the server's start: what carries this mark was started by a test.
        _publish(config, RUN_VARIABLE, uuid.uuid4().hex)


def _publish(config: pytest.Config, name: str, value: str) -> None:
    os.environ[name] = value
    config.add_cleanup(partial(os.environ.__delitem__, name))
