"""A COMMIT that is still on its way when its client has given it up."""

from __future__ import annotations

import pytest
from django.db import connection

from django_idempotency.engine import Engine
from django_idempotency.exceptions import StoreError
from django_idempotency.records import State
from django_idempotency.stores.database.postgresql import PostgreSQL
from tests.integration.database.claims import effects, operation, state_of, work
from tests.integration.database.sessions import PATIENCE, Session
from tests.services.processes import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18", "postgres16"),
]

#: The key of an advisory lock that no record has.
GATE = 4_243


@pytest.fixture
def engine(store):
    return Engine(store)


def run(engine, mode, name="mine"):
    return engine.run(operation(transaction=mode), work(name))


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
    other(execute, "SELECT pg_advisory_unlock_all(); DROP FUNCTION wait_at_the_gate CASCADE")


def execute(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)


def sessions_that_wait():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return cursor.fetchone()[0]


@pytest.fixture
def late(wire):
    """A session through the proxy, whose COMMIT may take its time."""
    session = Session()
    session(execute, "RESET statement_timeout")
    yield session
    session.close()


def run_until_the_commit_is_given_up(late, other, wire, engine, mode):
    running = late.start(run, engine, mode)
    wait_until(lambda: other(sessions_that_wait) == 1, seconds=PATIENCE, what="the COMMIT to wait")
    wire.cut()
    return running


def test_commit_of_joined_is_settled_by_a_write_that_waits_for_it(gate, wire, late, other, engine):
    running = run_until_the_commit_is_given_up(late, other, wire, engine, "joined")
    wait_until(lambda: other(sessions_that_wait) == 2, seconds=PATIENCE, what="the write to wait")
    gate()
    outcome = running.result(PATIENCE)
    assert (outcome.result, outcome.replayed) == ("mine", False)
    assert other(effects) == ["mine"]
    assert other(state_of, engine.store) is State.COMPLETED


def test_commit_of_joined_that_takes_too_long_is_left_alone(
    gate, wire, late, other, engine, monkeypatch
):
    impatient = PostgreSQL.RELEASE.replace("'5s'", "'50ms'")
    assert impatient != PostgreSQL.RELEASE
    monkeypatch.setattr(PostgreSQL, "RELEASE", impatient)
    running = run_until_the_commit_is_given_up(late, other, wire, engine, "joined")
    with pytest.raises(StoreError):
        running.result(PATIENCE)
    gate()
    wait_until(lambda: other(effects) == ["mine"], seconds=PATIENCE, what="the COMMIT")
    assert other(run, engine, "joined", "again").result == "mine"


def test_commit_of_single_that_takes_too_long_is_left_alone(gate, wire, late, other, engine):
    running = run_until_the_commit_is_given_up(late, other, wire, engine, "single")
    with pytest.raises(StoreError):
        running.result(PATIENCE)
    gate()
    wait_until(lambda: other(effects) == ["mine"], seconds=PATIENCE, what="the COMMIT")
    assert other(run, engine, "single", "again").result == "mine"
