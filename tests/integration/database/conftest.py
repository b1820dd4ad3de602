"""Fixtures of the tests of the database store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, connections
from psycopg import IsolationLevel

from django_idempotency.stores.database import DatabaseStore
from tests.integration.database.sessions import HANGING, Session, Two, execute, hang_up_after
from tests.integration.database.tenants import TENANTS, quoted
from tests.integration.database.views import ToldView
from tests.services.proxy import Proxy
from tests.unit.http.api import Api

ISOLATION_LEVELS = {
    "repeatable read": IsolationLevel.REPEATABLE_READ,
    "serializable": IsolationLevel.SERIALIZABLE,
}


@pytest.fixture
def store() -> DatabaseStore:
    """The store of the default database."""
    return DatabaseStore()


@pytest.fixture
def other(transactional_db: None) -> Iterator[Session]:
    """A second session, on a thread of its own."""
    session = Session()
    yield session
    session.close()


@pytest.fixture
def two(other: Session) -> Iterator[Two]:
    """Two sessions, neither of which hangs for longer than a moment."""
    hang_up_after(HANGING)
    yield Two(other)
    connection.close()


@pytest.fixture
def api(settings: Any) -> Api:
    """A client of the views of `tests.integration.database.views`."""
    settings.ROOT_URLCONF = "tests.integration.database.views"
    return Api()


@pytest.fixture(params=["single", "joined", "separate"])
def mode(request: pytest.FixtureRequest, settings: Any) -> str:
    """Each way to commit, as the policy of the default alias."""
    settings.IDEMPOTENCY = {"default": {"TRANSACTION": request.param}}
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["autocommit", "atomic_requests"])
def atomic_requests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """ATOMIC_REQUESTS off and on, on each database."""
    for alias in connections:
        monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", request.param)
    return bool(request.param)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """``told(function)``: what the view at ``/told/`` does after it has written its Effect."""
    return lambda function: monkeypatch.setattr(ToldView, "does", staticmethod(function))


def at_level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """
    The default database at an isolation level, for sessions opened from now on.

    By the server's default, which counts everywhere, or by Django's option, which does not count in
    autocommit.
    """
    level, how = request.param
    settings = connections.settings["default"]
    alter = f'ALTER DATABASE "{settings["NAME"]}"'
    with connection.cursor() as cursor:
        if how == "server":
            cursor.execute(f"{alter} SET default_transaction_isolation = '{level}'")
        else:
            options = {**settings["OPTIONS"], "isolation_level": ISOLATION_LEVELS[level]}
            monkeypatch.setitem(settings, "OPTIONS", options)
    connection.close()
    yield level
    with connection.cursor() as cursor:
        cursor.execute(f"{alter} RESET default_transaction_isolation")
    connection.close()


#: Make proof has the other two pairs.
@pytest.fixture(params=[("repeatable read", "option"), ("serializable", "server")], ids=" by ".join)
def isolation(
    request: pytest.FixtureRequest, transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """See `at_level`."""
    yield from at_level(request, monkeypatch)


@pytest.fixture
def tenants(transactional_db: None) -> Iterator[tuple[str, ...]]:
    """A schema for each of two tenants, with the tables of the library and of the work."""
    connection.close()
    for tenant in TENANTS:
        execute(f"CREATE SCHEMA {quoted(tenant)}")
        for table in ("idempotency_record", "app_effect"):
            there = f"{quoted(tenant)}.{table}"
            execute(f"CREATE TABLE {there} (LIKE public.{table} INCLUDING ALL)")
    yield TENANTS
    connection.close()
    for tenant in TENANTS:
        execute(f"DROP SCHEMA {quoted(tenant)} CASCADE")


@pytest.fixture
def wire(
    other: Session, proxy: Callable[[str, int], Proxy], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Proxy]:
    """A proxy between us and the default database; `other` is connected past it."""
    settings = connections.settings["default"]
    between = proxy(settings["HOST"], int(settings["PORT"]))
    monkeypatch.setitem(settings, "HOST", between.host)
    monkeypatch.setitem(settings, "PORT", str(between.port))
    connection.close()
    yield between
    connection.close()
