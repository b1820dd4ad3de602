"""The connection breaks, and what was done is not what was heard of it."""

from __future__ import annotations

import time
from contextlib import suppress
from contextvars import copy_context
from datetime import timedelta

import pytest
from django.db import DatabaseError, connection, connections
from django.db.backends.signals import connection_created

from django_idempotency.engine import Engine
from django_idempotency.engine.ending import RollBack
from django_idempotency.exceptions import InProgress, StoreError
from django_idempotency.records import State
from django_idempotency.stores.database import fresh
from tests.app.models import Effect
from tests.integration.database import claims
from tests.integration.database.claims import Boom, effects, lapse, operation, state_of, work
from tests.integration.database.sessions import PATIENCE, Session, execute
from tests.services.processes import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("postgres18")]

JOINS = pytest.mark.parametrize("mode", ["single", "joined"])
ALL = pytest.mark.parametrize("mode", ["single", "joined", "separate"])
OTHERS = (
    "FROM pg_stat_activity WHERE datname = current_database()"
    " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
)


@pytest.fixture
def engine(store):
    return Engine(store)


@pytest.fixture
def rolled_back(other):
    """Wait until the server has noticed which sessions are gone, and rolled back their work."""
    at_work = f"SELECT count(*) {OTHERS} AND xact_start IS NOT NULL"
    return lambda: wait_until(
        lambda: other(execute, at_work) == 0, seconds=PATIENCE, what="the server to roll back"
    )


def run(engine, mode, name="mine"):
    return engine.run(operation(transaction=mode), work(name))


# The COMMIT of work and record.


@JOINS
def test_answer_to_the_commit_is_lost(wire, engine, other, mode):
    connection.ensure_connection()
    wire.cut_after(b"COMMIT")
    outcome = run(engine, mode)
    assert wire.fired.wait(PATIENCE)
    assert (outcome.result, outcome.replayed, outcome.stored) == ("mine", False, True)
    assert run(engine, mode, "again").replayed
    assert other(effects) == ["mine"]


def test_connection_in_the_transaction_of_another_attempt_is_not_the_one_to_ask(engine, store):
    """Coroutines share a thread, and each has a context of its own."""
    another, context = engine.attempt(operation(transaction="joined")), copy_context()
    context.run(another.__enter__).complete("mine")
    theirs = connection.connection
    try:
        with store.working_connection():
            assert connection.connection is not theirs
        assert connection.connection is theirs
    finally:
        context.run(another.__exit__, None, None, None)


@pytest.mark.leg("postgres18", "mariadb")
@pytest.mark.parametrize("closed", ["never opened", "by the work"])
def test_connection_that_is_not_there_or_was_closed_is_not_the_one_to_ask(store, closed):
    connection.ensure_connection()
    connection.connection.close()
    if closed == "never opened":
        connection.connection = None
    with store.working_connection():
        assert state_of(store) is None


@JOINS
def test_R60_commit_does_not_reach_the_server(wire, engine, other, rolled_back, mode):
    connection.ensure_connection()
    wire.cut_before(b"COMMIT")
    with pytest.raises(StoreError):
        run(engine, mode)
    rolled_back()
    assert other(effects) == []
    assert run(engine, mode, "again").result == "again"


@JOINS
def test_answer_to_the_commit_is_lost_and_the_server_out_of_reach(wire, engine, other, mode):
    connection.ensure_connection()
    wire.refuse()
    wire.cut_after(b"COMMIT")
    with pytest.raises(StoreError):
        run(engine, mode)
    assert other(effects) == ["mine"]
    wire.heal()
    assert run(engine, mode, "again").result == "mine"


#: The key of an advisory lock that no record has.
GATE = 4_243


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


def test_commit_that_is_still_under_way_is_settled_by_a_write_that_waits_for_it(
    gate, wire, other, engine
):
    def wait_for(number):
        waiting = f"SELECT count(*) {OTHERS} AND wait_event_type = 'Lock'"
        wait_until(lambda: other(execute, waiting) == number, seconds=PATIENCE, what="the sessions")

    late = Session()  # through the wire
    late(execute, "RESET statement_timeout")
    running = late.start(run, engine, "joined")
    wait_for(1)
    wire.cut()
    wait_for(2)
    gate()
    outcome = running.result(PATIENCE)
    late.close()
    assert (outcome.result, outcome.replayed, other(effects)) == ("mine", False, ["mine"])
    assert other(state_of, engine.store) is State.COMPLETED


# In the middle of the work.


@ALL
def test_R58_connection_is_cut_in_mid_work(wire, rolled_back, engine, other, mode):
    def cut_off(lease):
        Effect.objects.create(name="mine")
        wire.cut()
        rolled_back()
        Effect.objects.create(name="mine, too")

    with pytest.raises(DatabaseError):
        engine.run(operation(transaction=mode), cut_off)
    assert other(effects) == (["mine"] if mode == "separate" else [])
    assert other(state_of, engine.store) is (None if mode == "single" else State.FAILED)
    assert run(engine, mode, "again").result == "again"


@pytest.fixture
def kill(other):
    """End all sessions but that of `other`; ours come from a pool without health checks."""
    size = 6  # more connections than a statement is sent on
    unpooled = connections["default"]
    unpooled.close()
    connections["default"] = pooled = unpooled.copy()
    pooled.settings_dict["OPTIONS"]["pool"] = {"min_size": size, "max_size": size}
    try:
        pooled.ensure_connection()
        wait_until(
            lambda: pooled.pool.get_stats()["pool_available"] == size - 1,
            seconds=PATIENCE,
            what="the pool to be full",
        )
        yield lambda: other(
            execute, f"SELECT pg_terminate_backend(pid, {PATIENCE * 1000}) {OTHERS}"
        )
    finally:
        connections["default"] = unpooled
        pooled.close()
        pooled.close_pool()


@JOINS
def test_R58_what_the_work_raises_passes_on_though_the_server_is_gone(wire, engine, other, mode):
    """Django connects anew after the rollback: that it cannot does not hide what was raised."""

    def fails(lease):
        work("mine")(lease)
        connection.connection.close()
        wire.refuse()
        raise Boom

    with pytest.raises(Boom):
        engine.run(operation(transaction=mode), fails)
    wire.heal()
    assert other(effects) == []


@pytest.mark.parametrize(("mode", "state"), [("separate", State.FAILED), ("single", None)])
def test_R58_the_record_of_work_that_failed_with_all_connections_is_failed(
    store, other, kill, mode, state, caplog
):
    def fail(lease):
        kill()
        raise Boom

    with pytest.raises(Boom):
        Engine(store).run(operation(transaction=mode), fail)
    assert other(state_of, store) is state
    told = [entry.getMessage() for entry in caplog.records if entry.name == "django_idempotency"]
    assert len(told) == (mode == "single")  # which has no lease to lapse
    assert all("it ends with its transaction." in message for message in told)


# The end of `separate`, and the claim.


@pytest.mark.parametrize("end", ["complete", "fail", "release"])
def test_R58_end_of_separate_is_sent_again_on_another_connection(wire, engine, other, end):
    def write(lease):
        cut = wire.cut_after if end == "complete" else wire.cut_before
        cut(b"UPDATE public.idempotency_record")
        if end == "complete":
            return work("mine")(lease)
        raise RollBack("release") if end == "release" else Boom

    with suppress(Boom):
        outcome = engine.run(operation(transaction="separate"), write)
    assert wire.fired.wait(PATIENCE)
    expected = {"complete": State.COMPLETED, "fail": State.FAILED, "release": State.RELEASED}
    assert other(state_of, engine.store) is expected[end]
    if end == "complete":
        assert (outcome.result, outcome.replayed, outcome.stored) == ("mine", False, True)


@pytest.mark.leg("postgres18", "mariadb")
def test_R58_end_of_separate_is_sent_again_where_the_work_has_closed_the_drivers_connection(store):
    """psycopg2 calls that an InterfaceError, the others an OperationalError."""
    lease = claims.live(store, claims.claim_request())
    connection.connection.close()
    store.complete(lease, claims.packed("mine"), retention=claims.RETENTION)
    assert state_of(store) is State.COMPLETED


def test_R60_completion_of_separate_gets_no_answer(wire, engine):
    def write(lease):
        wire.refuse()
        wire.cut_before(b"UPDATE public.idempotency_record")
        return work("mine")(lease)

    outcome = engine.run(operation(transaction="separate"), write)
    assert (outcome.result, outcome.replayed, outcome.stored) == ("mine", False, False)
    wire.heal()
    with pytest.raises(InProgress):
        run(engine, "separate", "again")


@ALL
def test_R61_server_is_out_of_reach_at_the_claim(wire, engine, mode):
    wire.refuse()
    with pytest.raises(StoreError) as raised:
        run(engine, mode, "never")
    assert raised.value.unreachable
    wire.heal()
    assert run(engine, mode).result == "mine"
    assert effects() == ["mine"]


def test_R61_answer_to_the_claim_is_lost(wire, engine, other):
    """The claim may have been won, so its lease has to lapse: nobody runs twice."""
    connection.ensure_connection()
    wire.cut_after(b"INSERT INTO idempotency_record")
    with pytest.raises(StoreError) as raised:
        run(engine, "joined", "never")
    assert raised.value.unreachable
    other(lapse)
    assert run(engine, "joined").result == "mine"
    assert effects() == ["mine"]


# A renewal.


@pytest.mark.leg("postgres18", "mariadb")
@pytest.mark.parametrize("silent", ["accepts", "is connected"])
def test_R69_a_renewal_waits_for_a_silent_server_no_longer_than_its_time(
    store, other, wire, monkeypatch, silent
):
    def swallow(**arguments):
        wire.swallow()

    monkeypatch.setattr(fresh, "CONNECT_SECONDS", 2)
    monkeypatch.setattr(fresh, "ANSWER_SECONDS", 1)
    lease = other(claims.live, store, claims.claim_request())
    if silent == "accepts":
        wire.swallow()
    else:
        connection_created.connect(swallow)
    started = time.monotonic()
    with pytest.raises(StoreError):
        store.renew([lease], timedelta(hours=1))
    connection_created.disconnect(swallow)
    assert time.monotonic() - started < 10
