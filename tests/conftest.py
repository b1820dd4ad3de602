"""Fixtures that give a test its servers, connections and threads; nothing outlives the run."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures.thread import _worker as _pool_thread
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from django.test import TransactionTestCase

from django_idempotency.conf import stores
from django_idempotency.logs import _traced, log_once
from django_idempotency.stores.memory import MemoryStore
from tests.services import MISSING_VARIABLE, current_leg
from tests.services.processes import ROOT, RUN_VARIABLE, descendants, describe, marked, wait_until
from tests.services.proxy import Proxy
from tests.services.rows import install as delete_rows_in_place_of_a_flush
from tests.services.servers import OwnServer
from tests.services.threads import run_in_threads as run_in_threads_together

UNIT = ROOT / "tests" / "unit"
DATABASE_FIXTURES = {"db", "transactional_db", "django_db_reset_sequences", "live_server"}

delete_rows_in_place_of_a_flush()


@pytest.fixture
def proxy() -> Iterator[Callable[[str, int], Proxy]]:
    """Start proxies: `proxy(host, port)`."""
    with ExitStack() as stack:
        yield lambda host, port: stack.enter_context(Proxy(host, port))


@pytest.fixture
def run_in_threads() -> Callable[..., list[Any]]:
    """`run_in_threads(n, function)`: see tests.services.threads."""
    return run_in_threads_together


@pytest.fixture(autouse=True)
def memory_is_empty() -> Iterator[None]:
    """Let the stores in memory forget what a test has left in them, as its databases do."""
    yield
    for configured in stores.plans.values():
        if isinstance(configured.store, MemoryStore):
            configured.store._records.clear()


@pytest.fixture(autouse=True)
def nothing_was_said_once() -> None:
    """Let the log say again what it says once in a process, or in a minute."""
    log_once.cache_clear()
    _traced.clear()


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """See `leaves_nothing_behind`: at the end of the run."""
    with leaves_nothing_behind():
        yield


@contextmanager
def leaves_nothing_behind() -> Iterator[None]:
    """Fail if a process or thread that tests have started is still there."""
    threads = set(threading.enumerate())
    processes = descendants(os.getpid())
    yield
    try:
        wait_until(
            lambda: not _left_threads(threads) and not _left_processes(processes),
            seconds=60,
            what="everything that tests started to end",
        )
    except TimeoutError as error:
        left = _left_processes(processes)
        lines = [*map(describe, left), *map(repr, _left_threads(threads))]
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        raise AssertionError("\n".join([f"{error}; still there:", *lines])) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the last that servers and workers wrote during a failed test."""
    report = yield
    if report.failed:
        for server in filter(lambda server: server.telling, OwnServer.running):
            written = server.output[_written.get(server, 0) :]
            if written:
                report.sections.append((f"output of {server.name}", _last(written)))
    return report


#: What each server had written when the running test began.
_written: WeakKeyDictionary[OwnServer, int] = WeakKeyDictionary()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    for server in filter(lambda server: server.telling, OwnServer.running):
        _written[server] = len(server.output)


def _last(output: str) -> str:
    """Return the last lines, each cut: a log of CI keeps what fits."""
    return "\n".join(line[:300] for line in output.splitlines()[-40:])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what belongs to another leg, and skip what lacks its server if that is allowed."""
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        marker = item.get_closest_marker("leg")
        if marker is not None and UNIT in item.path.parents and "sqlite" not in marker.args:
            raise pytest.UsageError(f"{item.nodeid} needs a server: move it to tests/integration")
        here = marker is None or current_leg() in marker.args
        (chosen if here else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = chosen
    if missing := os.environ.get(MISSING_VARIABLE):
        for item in filter(_touches_database, items):
            item.add_marker(pytest.mark.skip(reason=missing))


def _touches_database(item: pytest.Item) -> bool:
    if item.get_closest_marker("django_db"):
        return True
    case = getattr(item, "cls", None)
    if case is not None and issubclass(case, TransactionTestCase):
        return True
    return not DATABASE_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


def _left_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    """Living threads since then that have work, or wait for it elsewhere than in a pool.

    A pool ends its threads when it is collected, and a log record that pytest keeps of the last
    test can keep one of asgiref's until then. The renewer's thread stays on purpose.
    """
    running = sys._current_frames()
    idle = {ident for ident, frame in running.items() if frame.f_code is _pool_thread.__code__}
    return [
        thread
        for thread in set(threading.enumerate()) - before
        if thread.ident not in idle and not thread.name.startswith("django-idempotency-renewer")
    ]


def _left_processes(before: set[int]) -> set[int]:
    """Our descendants since then, and orphans with the mark of this run and xdist worker."""
    marks = [f"{RUN_VARIABLE}={os.environ[RUN_VARIABLE]}"]
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        marks.append(f"PYTEST_XDIST_WORKER={worker}")
    found = (descendants(os.getpid()) | marked(*marks)) - before - {os.getpid()}
    return {pid for pid in found if "multiprocessing." not in describe(pid)}
