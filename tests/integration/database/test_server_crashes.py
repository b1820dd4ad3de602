"""
The server goes down like in a power cut, and comes back with what was committed.

In some of the modes; make proof has them all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connection, connections, transaction

from django_idempotency.engine import Engine
from django_idempotency.exceptions import InProgress, StoreError
from django_idempotency.models import IdempotencyRecord
from django_idempotency.stores.database import DatabaseStore
from tests.app.models import Effect
from tests.integration.database.claims import effects, lapse, operation, work
from tests.services import current_leg
from tests.services.postgres import PostgresServer

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18", "postgres16"),
    pytest.mark.processes,
]


@pytest.fixture(scope="module")
def started() -> Iterator[PostgresServer]:
    version = 16 if current_leg() == "postgres16" else 18
    with PostgresServer(version, durable=True) as server:
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


@pytest.fixture
def engine(server: PostgresServer) -> Engine:
    return Engine(DatabaseStore())


@pytest.mark.parametrize("mode", ["single", "joined"])
def test_I8_crash_after_the_claim(server, engine, mode):
    def crash(lease):
        work("mine")(lease)
        server.crash()
        work("mine, too")(lease)

    with pytest.raises(DatabaseError):
        engine.run(operation(transaction=mode), crash)
    server.restart()
    if mode == "single":  # its claim was gone with its session
        assert engine.run(operation(transaction=mode), work("again")).result == "again"
        assert effects() == ["again"]
        return
    with pytest.raises(InProgress):
        engine.run(operation(transaction=mode), work("again"))
    lapse()
    assert engine.run(operation(transaction=mode), work("again")).result == "again"
    assert effects() == (["mine", "again"] if mode == "separate" else ["again"])


@pytest.mark.parametrize("mode", ["joined"])
def test_I13_crash_after_the_commit(server, engine, mode):
    engine.run(operation(transaction=mode), work("mine"))
    server.crash()
    server.restart()
    with pytest.raises(StoreError):  # the connection was the old server's
        engine.run(operation(transaction=mode), work("again"))
    assert engine.run(operation(transaction=mode), work("again")).replayed
    assert effects() == ["mine"]


@pytest.mark.parametrize("mode", ["single"])
def test_I13_crash_between_commit_and_hook(server, engine, mode):
    def run(lease):
        transaction.on_commit(server.crash)
        return work("mine")(lease)

    assert engine.run(operation(transaction=mode), run).stored
    server.restart()
    connection.close()
    assert engine.run(operation(transaction=mode), work("again")).replayed
    assert effects() == ["mine"]


@pytest.mark.parametrize("mode", ["separate"])
def test_R61_server_that_is_down_at_the_claim(server, engine, mode):
    server.stop()
    connection.close()
    ran = []
    with pytest.raises(StoreError):
        engine.run(operation(transaction=mode), ran.append)
    assert ran == []
    server.start()
    assert engine.run(operation(transaction=mode), work("mine")).result == "mine"
