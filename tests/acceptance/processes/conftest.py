"""Fixtures for tests with gunicorn processes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from tests.acceptance.processes.clients import USER, Work
from tests.services.databases import environment_for_children
from tests.services.forks import Forks
from tests.services.gunicorn import Gunicorn

#: What `serve(kind=…)` starts; each forks its workers from a process that has Django ready.
KINDS: dict[str, dict[str, Any]] = {
    "shared": {"workers": 4},
    "behind": {"workers": 4},  # PgBouncer
    "elsewhere": {"workers": 2},  # on a database server of its own
    "sync": {"app": "preloaded_wsgi", "worker_class": "sync", "threads": 1, "workers": 3},
    "skewed": {"app": "skewed_wsgi", "workers": 1},
}


#: `serve(transaction, …)`; see the fixture.
Serve = Callable[..., Gunicorn]


@pytest.fixture(autouse=True)
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8, thread_name_prefix="test-client") as executor:
        yield executor


@pytest.fixture(autouse=True)
def user(transactional_db: None) -> User:
    """The caller, there from the start: creating it is not part of any race."""
    return User.objects.create(username=USER)


@pytest.fixture(scope="module")
def forks(django_db_setup: None) -> Iterator[Forks]:
    """Run programs, each in a process of its own that has our databases."""
    with Forks(environment_for_children()) as forks:
        yield forks


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


@pytest.fixture(scope="session")
def servers(django_db_setup: None) -> Iterator[dict[str, Gunicorn]]:
    """Servers by kind, which stay up for the next test that wants one."""
    servers: dict[str, Gunicorn] = {}
    yield servers
    with ThreadPoolExecutor() as executor:  # each waits for its workers' idle threads, for seconds
        list(executor.map(Gunicorn.close, servers.values()))


_number = count()


@pytest.fixture
def serve(servers: dict[str, Gunicorn], tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """`serve(transaction, …)`: gunicorn under that policy, with all of its workers."""

    def start(
        transaction: str | None = None,
        *,
        kind: str = "shared",
        env: Mapping[str, str] = {},
        lease: float = 60,
        renew: bool = True,
        max_duration: float = 3600,
        unfenced: bool = False,
        **database: Any,
    ) -> Gunicorn:
        policy = {"LEASE": lease, "RENEW": renew, "MAX_DURATION": max_duration}
        policy |= {"TRANSACTION": transaction} if transaction else {}
        database = {"ATOMIC_REQUESTS": False, "CONN_MAX_AGE": 0, **database}
        said = {"policy": policy, "database": database, "unfenced": unfenced, "n": next(_number)}
        file = tmp_path_factory.getbasetemp() / f"{kind}.json"
        file.with_suffix(".new").write_text(json.dumps(said))
        os.replace(file.with_suffix(".new"), file)
        if kind not in servers:
            options = {"app": "wsgi", "options": ["--preload"], **KINDS[kind]}
            app = f"tests.acceptance.processes.{options.pop('app')}:application"
            env = {**environment_for_children(), "IDEMPOTENCY_TEST_POLICY": str(file), **env}
            servers[kind] = Gunicorn(app, env=env, **options).start()
        server = servers[kind]
        server.wake_workers()
        return server

    return start
