"""The server goes down like in a power cut, and comes back with what was committed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.db import connection, connections

from django_idempotency.engine import Engine
from django_idempotency.exceptions import StoreError
from django_idempotency.models import IdempotencyRecord
from django_idempotency.stores.database import DatabaseStore
from tests.app.models import Effect
from tests.integration.database.claims import effects, operation, work
from tests.services.postgres import PostgresServer

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18"),
    pytest.mark.processes,
]


@pytest.fixture(scope="module")
def started() -> Iterator[PostgresServer]:
    with PostgresServer(18, durable=True) as server:
        server.create_database("shop")
        yield server


@pytest.fixture
def server(
    started: PostgresServer, transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PostgresServer]:
    """A server of our own, to which the default database has moved."""
    connection.close()
    for name, value in started.django_settings("shop").items():
        monkeypatch.setitem(connections.settings["default"], name, value)
    call_command("migrate", run_syncdb=True, verbosity=0)
    IdempotencyRecord.objects.all().delete()
    Effect.objects.all().delete()
    yield started
    connection.close()
    started.start()


@pytest.mark.parametrize("mode", ["single", "joined"])
def test_I13_crash_after_the_commit(server, mode):
    engine = Engine(DatabaseStore())
    engine.run(operation(transaction=mode), work("mine"))
    server.crash()
    server.restart()
    with pytest.raises(StoreError):  # the connection was the old server's
        engine.run(operation(transaction=mode), work("again"))
    assert engine.run(operation(transaction=mode), work("again")).replayed
    assert effects() == ["mine"]
