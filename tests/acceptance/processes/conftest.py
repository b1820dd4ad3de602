"""Fixtures for tests with gunicorn processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import pytest
from django.contrib.auth.models import User

from tests.acceptance.processes.clients import USER, Work
from tests.conftest import GunicornFactory
from tests.services.gunicorn import Gunicorn
from tests.services.processes import wait_until


class Serve(Protocol):
    def __call__(
        self,
        transaction: str | None = None,
        *,
        lease: float = ...,
        renew: bool = ...,
        max_duration: float = ...,
        atomic_requests: bool = ...,
        own: bool = ...,
        **arguments: Any,
    ) -> Gunicorn: ...


@pytest.fixture(autouse=True)
def threads() -> Iterator[ThreadPoolExecutor]:
    """Threads for requests under way."""
    with ThreadPoolExecutor(8, thread_name_prefix="test-client") as executor:
        yield executor


@pytest.fixture(autouse=True)
def user(transactional_db: None) -> User:
    """The caller, there from the start: creating it is not part of any race."""
    return User.objects.create(username=USER)


@pytest.fixture
def work(tmp_path: Path, threads: ThreadPoolExecutor) -> Iterator[Callable[..., Work]]:
    """`work(name)`: work that waits to be told; what still waits at the end goes on."""
    made: list[Work] = []

    def make(name: str = "pay") -> Work:
        made.append(Work(tmp_path, threads, name))
        return made[-1]

    yield make
    for attempt in [attempt for each in made for attempt in each.attempts]:
        attempt.go_on()


class Servers:
    """Servers that stay up for the next test that wants one of the same kind."""

    MOST = 6

    def __init__(self) -> None:
        self._running: dict[str, Gunicorn] = {}

    def get(self, app: str, **arguments: Any) -> Gunicorn:
        """Return a server with all of its workers, started with these arguments."""
        kind = repr((app, sorted(arguments.items())))
        server = self._running.pop(kind, None)
        if server is None:
            if len(self._running) == self.MOST:
                self._running.pop(next(iter(self._running))).close()
            server = Gunicorn(app, **arguments).start()
        else:
            for pid in server.worker_pids():
                server.kill(pid, signal.SIGCONT)
            wait_until(server.is_whole, seconds=20, what="new workers")
        self._running[kind] = server
        return server

    def close(self) -> None:
        for server in self._running.values():
            server.close()


@pytest.fixture(scope="session")
def servers(django_db_setup: None) -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.close()


@pytest.fixture
def serve(
    servers: Servers, gunicorn: GunicornFactory, process_environment: dict[str, str]
) -> Serve:
    """`serve(transaction, …)`: gunicorn under that policy, 2 workers; `own` is not shared."""

    def start(
        transaction: str | None = None,
        *,
        lease: float = 60,
        renew: bool = True,
        max_duration: float = 3600,
        atomic_requests: bool = False,
        own: bool = False,
        **arguments: Any,
    ) -> Gunicorn:
        env = {
            "IDEMPOTENCY_TEST_LEASE": str(lease),
            "IDEMPOTENCY_TEST_RENEW": str(int(renew)),
            "IDEMPOTENCY_TEST_MAX_DURATION": str(max_duration),
            "IDEMPOTENCY_TEST_ATOMIC_REQUESTS": str(int(atomic_requests)),
            **arguments.pop("env", {}),
        }
        if transaction is not None:
            env["IDEMPOTENCY_TEST_TRANSACTION"] = transaction
        arguments = {"app": "tests.services.wsgi:application", "workers": 2, **arguments}
        if own:
            return gunicorn(env=env, **arguments)
        return servers.get(env={**process_environment, **env}, **arguments)

    return start
