"""A COMMIT that is still on its way when its client has given it up."""

from __future__ import annotations

import pytest

from django_idempotency.engine import Engine
from django_idempotency.exceptions import StoreError
from django_idempotency.records import State
from django_idempotency.stores.database.postgresql import PostgreSQL
from tests.integration.database.claims import effects, operation, state_of, work
from tests.integration.database.sessions import PATIENCE, Session, execute
from tests.services.processes import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("postgres18")]

#: The key of an advisory lock that no record has.
GATE = 4_243
WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


@pytest.fixture
def gate(other):
    """Each COMMIT that has written an Effect waits at the gate, which `other` opens."""
    other(
        execute,
        f"""
        CREATE FUNCTION wait_at_the_gate() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON app_effect DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION wait_at_the_gate();
        SELECT pg_advisory_lock({GATE})
        """,
    )
    yield lambda: other(execute, "SELECT pg_advisory_unlock_all()")
    other(execute, "SELECT pg_advisory_unlock_all()")
    other(execute, "DROP FUNCTION wait_at_the_gate CASCADE")


@pytest.fixture
def late(wire):
    """A session through the proxy, whose COMMIT may take its time."""
    session = Session()
    session(execute, "RESET statement_timeout")
    yield session
    session.close()


def run(store, mode, name):
    return Engine(store).run(operation(transaction=mode), work(name))


def wait_for(other, number):
    wait_until(lambda: other(execute, WAITING) == number, seconds=PATIENCE, what="the sessions")


def test_commit_of_joined_is_settled_by_a_write_that_waits_for_it(gate, wire, late, other, store):
    running = late.start(run, store, "joined", "mine")
    wait_for(other, 1)
    wire.cut()
    wait_for(other, 2)
    gate()
    outcome = running.result(PATIENCE)
    assert (outcome.result, outcome.replayed) == ("mine", False)
    assert other(effects) == ["mine"]
    assert other(state_of, store) is State.COMPLETED


@pytest.mark.parametrize("mode", ["joined", "single"])
def test_commit_that_takes_too_long_is_left_alone(
    gate, wire, late, other, store, monkeypatch, mode
):
    impatient = PostgreSQL.RELEASE.replace("'5s'", "'50ms'")
    assert impatient != PostgreSQL.RELEASE
    monkeypatch.setattr(PostgreSQL, "RELEASE", impatient)
    running = late.start(run, store, mode, "mine")
    wait_for(other, 1)
    wire.cut()
    with pytest.raises(StoreError):
        running.result(PATIENCE)
    gate()
    wait_until(lambda: other(effects) == ["mine"], seconds=PATIENCE, what="the COMMIT")
    assert other(run, store, mode, "again").result == "mine"
