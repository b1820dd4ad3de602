"""The server goes down like in a power cut, and comes back with what was committed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection, connections, transaction
from django.utils import timezone

import django_idempotency as idempotency
from django_idempotency.conf import InvalidStore, store_for
from django_idempotency.engine import Engine
from django_idempotency.exceptions import LeaseLost, StoreError
from django_idempotency.models import IdempotencyRecord
from django_idempotency.stores.database import DatabaseStore, prepared
from tests.app.models import Effect
from tests.integration.database.claims import (
    RETENTION,
    claim_request,
    effects,
    expire,
    lapse,
    operation,
    packed,
    state_of,
    won,
    work,
)
from tests.integration.database.sessions import execute
from tests.services.postgres import PostgresServer

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18"),
    pytest.mark.processes,
]


@pytest.fixture(scope="module")
def started() -> Iterator[PostgresServer]:
    # What nobody waits for is not on the disk before 10 seconds are over.
    options = {"wal_writer_delay": "10s", "autovacuum": "off"}
    with PostgresServer(18, durable=True, options=options) as server:
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


@pytest.mark.parametrize("is_call", [False, True], ids=["step", "external"])
def test_P14_a_note_that_has_committed_survives_with_its_work(server, settings, is_call):
    settings.IDEMPOTENCY = {"default": {}}
    made = []

    def run(crashes):
        return idempotency.run(
            lambda lease: attempt(lease, crashes), key="k", scope="s", transaction="steps"
        )

    def attempt(lease, crashes):
        first = lease.step("rows", lambda: Effect.objects.create(name="rows").name)
        if is_call:
            lease.external("call", made.append, uncertain="repeat")
        if crashes:
            server.crash()
            server.restart()
        return [first, lease.step("more", lambda: Effect.objects.create(name="more").name)]

    with pytest.raises(OperationalError):  # the connection was the old server's
        run(crashes=True)
    connection.close()
    IdempotencyRecord.objects.filter(state="IN_PROGRESS").update(lease_until=timezone.now())
    assert run(crashes=False).result == ["rows", "more"]
    assert (effects(), len(made)) == (["rows", "more"], int(is_call))


# OPTIONS["async_claim"].


@pytest.fixture(params=[2, 0], ids=["cursor", "prepared"])
def hasty(server, monkeypatch, request):
    """A store whose claims do not wait for the disk, by a cursor and prepared."""
    monkeypatch.setattr(prepared, "USES_BEFORE", request.param)
    connection.close()
    return DatabaseStore(async_claim=True)


def waits_for_the_disk(step):
    """Whether what `step` writes is on the disk when it returns; the server may do it by chance."""

    def is_flushed():
        step()
        return execute("SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()")

    return all(is_flushed() for _ in range(5))


@pytest.mark.parametrize(
    ("transaction", "on_stale", "asynchronous"),
    [
        ("joined", "take_over", True),
        ("joined", "refuse", False),
        ("separate", "take_over", False),
    ],
)
def test_async_claim_alone_does_not_wait_for_the_disk(hasty, transaction, on_stale, asynchronous):
    fields = {"transaction": transaction, "on_stale": on_stale}
    numbers = iter(range(100))

    def claim():
        return won(hasty.claim(claim_request(f"key {next(numbers)}", **fields)))

    def claim_again():
        lapse("again")
        won(hasty.claim(claim_request("again", **fields | {"on_stale": "take_over"})))

    assert waits_for_the_disk(claim) is not asynchronous
    assert waits_for_the_disk(lambda: hasty.fail(claim(), "builtins.OSError"))
    assert waits_for_the_disk(lambda: hasty.complete(claim(), packed("x"), retention=RETENTION))
    won(hasty.claim(claim_request("again", **fields)))
    assert waits_for_the_disk(claim_again) is (transaction == "separate")
    assert execute("SHOW synchronous_commit") == "on"


def in_atomic(claim):
    with transaction.atomic():
        claim()


def in_a_transaction_that_django_does_not_know(claim):
    execute("BEGIN")
    claim()
    execute("COMMIT")


def with_autocommit_off(claim):
    transaction.set_autocommit(False)
    claim()
    transaction.commit()
    transaction.set_autocommit(True)


@pytest.mark.parametrize(
    "within", [in_atomic, in_a_transaction_that_django_does_not_know, with_autocommit_off]
)
def test_async_claim_leaves_the_callers_commit_as_it_is(hasty, within):
    numbers = iter(range(100))

    def claim():
        won(hasty.claim(claim_request(f"key {next(numbers)}", transaction="joined")))

    assert waits_for_the_disk(lambda: within(claim))


@pytest.mark.parametrize("before", ["absent", "lapsed", "expired"])
def test_async_claim_that_a_crash_loses_rolls_its_work_back(hasty, server, before):
    """The work begins on the server that came back: its own transaction was not lost."""
    if before != "absent":
        lease = won(hasty.claim(claim_request(transaction="joined")))
        if before == "lapsed":
            hasty.renew([lease], RETENTION)  # it commits, and waits for the disk
            lapse()
        else:
            hasty.complete(lease, packed("first"), retention=RETENTION)
            expire()
    left = state_of(hasty)

    engine, claim = Engine(hasty), hasty.claim

    def claim_and_crash(request):
        claimed = claim(request)
        connection.close()
        server.crash()
        server.restart()
        return claimed

    hasty.claim = claim_and_crash
    with pytest.raises(LeaseLost):
        engine.run(operation(), work("mine"))
    assert (effects(), state_of(hasty)) == ([], left)
    hasty.claim = claim
    assert not engine.run(operation(), work("again")).replayed
    assert effects() == ["again"]


@pytest.mark.parametrize("value", ["yes", None])
def test_async_claim_is_True_or_False(settings, value):
    settings.IDEMPOTENCY = {"default": {"OPTIONS": {"async_claim": value}}}
    with pytest.raises(InvalidStore, match="async_claim is True or False"):
        store_for("default")
