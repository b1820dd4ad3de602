"""The completion is the last statement of its transaction: it goes out with the COMMIT."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import Error, IntegrityError, connection, connections, transaction
from django.db.backends.postgresql.base import DatabaseWrapper

from django_idempotency import keys, signals
from django_idempotency.conf import store_for
from django_idempotency.engine import Engine
from django_idempotency.exceptions import LeaseLost, StoreError, TransactionOpen
from django_idempotency.models import IdempotencyRecord
from django_idempotency.records import State
from django_idempotency.stores.database import prepared
from django_idempotency.testing import crash_at
from django_idempotency.transactions.block import Block
from tests.app.models import Child
from tests.integration.database import claims
from tests.integration.database.claims import effects, operation, state_of, work
from tests.integration.database.sessions import PATIENCE, execute
from tests.services.processes import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    pytest.mark.leg("postgres18", "postgres16"),
]

MODES = pytest.mark.parametrize("mode", ["single", "joined"])


@pytest.fixture
def engine(store, monkeypatch, transactional_db):
    """An engine whose statements are all prepared in this thread's session."""
    monkeypatch.setattr(prepared, "USES_BEFORE", 0)
    connection.close()
    engine = Engine(store)
    warm(engine)
    yield engine
    connection.close()


def warm(engine):
    for mode in ("single", "joined"):
        engine.run(operation(f"warm {mode}", transaction=mode), lambda lease: "warm")


@pytest.fixture
def wired(wire, engine):
    """The engine's session goes through the wire."""
    warm(engine)
    wire.spoken.clear()
    return wire


@contextmanager
def sent_together(wire, *, together=True):
    """The completion and the COMMIT go out in one piece; or the COMMIT in one of its own."""
    wire.spoken.clear()
    yield
    pieces = [data for speaker, data in wire.spoken if speaker == "client" and b"COMMIT" in data]
    assert {b"idempotency_completion" in piece for piece in pieces} == {together}


def fails_late(lease):
    """A deferred constraint: PostgreSQL says so at the COMMIT."""
    Child.objects.create(parent_id=404)
    return work("mine")(lease)


# It has all that Django's own COMMIT has.


@MODES
def test_hooks_run_after_it_and_autocommit_is_on_again(wired, engine, other, mode):
    seen = []

    def hook():
        seen.append((other(effects), connection.in_atomic_block, connection.get_autocommit()))

    def do(lease):
        transaction.on_commit(hook)
        return work("mine")(lease)

    with sent_together(wired):
        assert engine.run(operation(transaction=mode), do).result == "mine"
    assert seen == [(["mine"], False, True)]
    assert other(state_of, engine.store) is State.COMPLETED
    with transaction.atomic(durable=True):
        work("another transaction")(None)
    assert other(effects) == ["mine", "another transaction"]


@MODES
def test_a_hook_that_raises_leaves_what_has_committed(wired, engine, other, mode):
    def do(lease):
        transaction.on_commit(lambda: 1 / 0)
        return work("mine")(lease)

    with sent_together(wired), pytest.raises(ZeroDivisionError):
        engine.run(operation(transaction=mode), do)
    assert other(effects) == ["mine"]
    assert engine.run(operation(transaction=mode), work("again")).result == "mine"


@MODES
def test_an_error_that_is_kept_goes_out_with_the_commit(wired, engine, mode):
    def do(lease):
        work("lost")(lease)
        raise claims.Boom

    asked = operation(transaction=mode)
    with sent_together(wired) if mode == "single" else nullcontext():  # `joined` has no COMMIT
        assert engine.run(asked, do, lambda error: "kept").result == "kept"
    assert engine.run(operation(transaction=mode), work("again")).result == "kept"
    assert effects() == []


# Where the COMMIT must not go out.


@MODES
def test_not_within_a_transaction_of_the_callers(wired, engine, other, mode):
    with sent_together(wired, together=False), transaction.atomic():
        engine.run(operation(transaction="single"), work("mine"))
        assert other(effects) == []
    assert other(effects) == ["mine"]


def raises(lease):
    raise claims.Boom


@pytest.mark.parametrize("inner", [work("inner"), raises], ids=["returns", "raises"])
def test_a_nested_attempt_does_not_commit_the_outer_one(engine, other, inner):
    def outer(lease):
        work("outer")(lease)
        asked = operation("inner", transaction="single")
        assert engine.run(asked, inner, lambda error: "kept").result in ("inner", "kept")
        assert other(effects) == []
        raise claims.Boom

    with pytest.raises(claims.Boom):
        engine.run(operation(transaction="joined"), outer)
    assert effects() == []
    assert state_of(engine.store, "inner") is None


def test_a_completion_that_the_work_writes_itself_is_not_the_last_statement(engine, store, other):
    def do(lease):
        work("mine")(lease)
        store.complete(lease, claims.packed("mine"), retention=claims.RETENTION)
        assert other(effects) == []
        return "mine"

    assert engine.run(operation(transaction="joined"), do).result == "mine"
    assert other(effects) == ["mine"]


def test_I3_an_attempt_in_a_hook_of_another_alias_does_not_commit_the_one_around_it(engine, other):
    """The outer work has ended, and has sent nothing: the inner claim is the first statement."""
    told = []

    def inner(lease):
        transaction.on_commit(lambda: told.append("inner"))
        return work("inner")(lease)

    def hook():
        engine.run(operation("inner", transaction="joined"), inner)

    def outer(lease):
        transaction.on_commit(hook, using="other")
        other(take_over)
        return "outer"

    asked = replace(operation(transaction="joined"), aliases=("other",))
    with pytest.raises(LeaseLost):
        engine.run(asked, outer)
    assert (told, other(effects)) == ([], ["theirs"])
    assert other(state_of, engine.store, "inner") is None


@MODES
def test_the_completion_of_another_lease_is_not_the_last_statement(engine, store, other, mode):
    theirs = claims.won(other(store.claim, claims.claim_request("theirs", transaction="joined")))
    seen = []

    def hook():
        store.complete(theirs, claims.packed("theirs"), retention=claims.RETENTION)
        seen.append(other(effects))

    def do(lease):
        transaction.on_commit(hook, using="other")
        return work("mine")(lease)

    engine.run(replace(operation(transaction=mode), aliases=("other",)), do)
    assert (seen, other(effects)) == ([[]], ["mine"])


def test_a_block_of_the_stores_that_a_coroutine_has_left_open_takes_all_along(engine, store, other):
    block = store.atomic()

    async def do(lease):
        await sync_to_async(block.__enter__)()
        await sync_to_async(work("lost"))(lease)
        return "lost"

    with pytest.raises(TransactionOpen):
        async_to_sync(engine.arun)(operation(transaction="joined"), do)
    assert other(effects) == []


@MODES
def test_a_transaction_of_the_drivers_own_forbids_the_commit(engine, other, mode):
    kept = []

    def do(lease):
        work("mine")(lease)
        kept.append(connection.connection.transaction())
        kept[0].__enter__()
        return "mine"

    with pytest.raises(Error):
        engine.run(operation(transaction=mode), do)
    assert other(effects) == []


def test_a_store_without_an_attempt_commits_nothing(engine, store, other):
    with store.atomic():
        lease = claims.won(store.claim(claims.claim_request(transaction="joined")))
        store.complete(lease, claims.packed("mine"), retention=claims.RETENTION)
        assert other(state_of, store) is None


def test_a_block_that_a_coroutine_has_left_open_takes_all_along(engine):
    block = transaction.atomic()

    async def do(lease):
        await sync_to_async(block.__enter__)()
        await sync_to_async(work("lost"))(lease)
        return "lost"

    with pytest.raises(TransactionOpen):
        async_to_sync(engine.arun)(operation(transaction="joined"), do)
    assert effects() == []


@pytest.mark.parametrize("do", [work("mine"), raises], ids=["returns", "raises"])
def test_not_with_autocommit_off(engine, store, other, do):
    transaction.set_autocommit(False)
    try:
        engine.run(operation(transaction="single"), do, lambda error: "kept")
        assert other(state_of, store) is None
        transaction.commit()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert other(state_of, store) is State.COMPLETED


class Auditing(DatabaseWrapper):
    """A project's own: it writes before each COMMIT."""

    def _commit(self):
        if self.connection.info.transaction_status:
            with self.cursor() as cursor:
                cursor.execute("INSERT INTO app_effect (name) VALUES ('audited')")
        return super()._commit()


def test_a_connection_with_a_commit_of_its_own_sends_that(engine, other):
    connection.close()
    before = connections["default"]
    connections["default"] = Auditing(before.settings_dict, "default")
    try:
        warm(engine)
        execute("TRUNCATE app_effect")
        engine.run(operation(transaction="joined"), work("mine"))
    finally:
        connection.close()
        connections["default"] = before
    assert other(effects) == ["mine", "audited"]


# What the server refuses.


@MODES
def test_R57_F15_what_the_server_says_against_the_commit_passes_on(wired, engine, other, mode):
    told = []

    def do(lease):
        transaction.on_commit(lambda: told.append("committed"))
        return fails_late(lease)

    with sent_together(wired), pytest.raises(IntegrityError, match="foreign key"):
        engine.run(operation(transaction=mode), do)
    assert (told, other(effects), Child.objects.count()) == ([], [], 0)
    assert other(state_of, engine.store) is State.FAILED
    assert connection.get_autocommit()
    assert engine.run(operation(transaction=mode), work("again")).result == "again"


def take_over():
    """Another attempt takes the record over, and completes it."""
    claims.lapse()
    Engine(claims.DatabaseStore()).run(operation(transaction="joined"), work("theirs"))


def forget():
    IdempotencyRecord.objects.all().delete()


@pytest.mark.parametrize("happens", [take_over, forget])
def test_I3_a_lost_lease_commits_nothing(wired, engine, other, happens):
    def do(lease):
        other(happens)
        return work("mine")(lease)

    with pytest.raises(LeaseLost) as raised:
        engine.run(operation(transaction="joined"), do)
    assert raised.value.gone is (happens is forget)
    assert other(effects) == (["theirs"] if happens is take_over else [])
    assert not connection.in_atomic_block


def test_R98_work_that_has_changed_its_role_completes_in_that_of_the_claim(wired, engine, other):
    tables = "app_effect, app_effect_id_seq, idempotency_record"
    execute(f"GRANT ALL ON {tables} TO pg_write_all_data")

    def do(lease):
        execute("SET ROLE pg_write_all_data")
        return work("mine")(lease)

    try:
        assert engine.run(operation(transaction="joined"), do).result == "mine"
    finally:
        connection.close()
        other(execute, f"REVOKE ALL ON {tables} FROM pg_write_all_data")
    assert other(effects) == ["mine"]
    assert other(state_of, engine.store) is State.COMPLETED


@MODES
@pytest.mark.parametrize("when", ["BEFORE", "AFTER"])
def test_an_error_of_a_trigger_is_no_lost_lease(engine, other, mode, when):
    """It is the error by which we know a completion that writes nothing."""
    other(
        execute,
        f"""
        CREATE FUNCTION breaks() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN IF NEW.state = ''COMPLETED'' THEN PERFORM 1 / 0; END IF; RETURN NEW; END';
        CREATE TRIGGER breaks {when} INSERT OR UPDATE ON idempotency_record
        FOR EACH ROW EXECUTE FUNCTION breaks()
        """,
    )
    try:
        with pytest.raises(StoreError, match=r"could not run its (COMPLETE|SINGLE_INSERT)"):
            engine.run(operation(transaction=mode), work("mine"))
    finally:
        other(execute, "DROP FUNCTION breaks CASCADE")
    assert other(effects) == []


@pytest.mark.parametrize("seen", [claims.failed, claims.released, claims.expired])
def test_I2_another_try_of_single_goes_out_with_the_commit(wired, engine, store, seen):
    seen(store, claims.claim_request())
    with sent_together(wired):
        engine.run(operation(transaction="single"), work("mine"))
    record = store.get(claims.record_id("key"))
    assert (record.state, effects()) == (State.COMPLETED, ["mine"])


@pytest.mark.usefixtures("wired")
def test_R76_a_record_that_was_swept_meanwhile_is_inserted(engine, store, other):
    claims.expired(store, claims.claim_request())

    def do(lease):
        assert other(store.sweep) == 1
        return work("mine")(lease)

    assert engine.run(operation(transaction="single"), do).result == "mine"
    assert (other(effects), other(state_of, store)) == (["mine"], State.COMPLETED)


# The connection breaks.


@MODES
def test_F9_both_arrive_and_the_answer_is_lost(wired, engine, other, mode):
    wired.cut_after(b"idempotency_completion")
    outcome = engine.run(operation(transaction=mode), work("mine"))
    assert wired.fired.is_set()
    assert (outcome.result, outcome.replayed, outcome.stored) == ("mine", False, True)
    assert outcome.expires_at == engine.store.get(outcome.record_id).expires_at
    assert other(effects) == ["mine"]
    assert engine.run(operation(transaction=mode), work("again")).replayed


@MODES
def test_F9_neither_arrives(wired, engine, other, mode):
    wired.cut_before(b"idempotency_completion")
    with pytest.raises(StoreError):
        engine.run(operation(transaction=mode), work("mine"))
    assert wired.fired.is_set()
    assert other(effects) == []
    assert engine.run(operation(transaction=mode), work("again")).result == "again"


@MODES
def test_F9_the_answer_is_lost_and_the_server_out_of_reach(wired, engine, other, mode):
    wired.refuse()
    wired.cut_after(b"idempotency_completion")
    with pytest.raises(StoreError, match="not known"):
        engine.run(operation(transaction=mode), work("mine"))
    assert other(effects) == ["mine"]
    wired.heal()
    assert engine.run(operation(transaction=mode), work("again")).result == "mine"


WAITS = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = {}"


@pytest.fixture
def gate(other):
    """A table that each COMMIT with an Effect locks for a moment."""
    other(
        execute,
        """
        CREATE TABLE gate ();
        CREATE FUNCTION pass_the_gate() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN LOCK TABLE gate; RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON app_effect
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pass_the_gate()
        """,
    )
    yield
    connection.close()
    other(execute, "DROP TABLE gate; DROP FUNCTION pass_the_gate CASCADE")


@MODES
@pytest.mark.parametrize("where", ["at the completion", "at the COMMIT"])
@pytest.mark.usefixtures("gate")
def test_F9_the_session_ends_between_them(engine, other, mode, where):
    """The server has read both, and waits: for the records' table, or in a constraint's trigger."""
    table = "idempotency_record" if where == "at the completion" else "gate"
    ours = execute("SELECT pg_backend_pid()")

    def end():
        wait_until(lambda: execute(WAITS.format(ours)), seconds=PATIENCE, what="the session")
        execute(f"SELECT pg_terminate_backend({ours}, {PATIENCE * 1000})")
        execute("ROLLBACK")

    def do(lease):
        other(execute, "BEGIN")
        other(execute, f"LOCK TABLE {table} IN SHARE MODE")
        ended.append(other.start(end))
        return work("mine")(lease)

    ended = []
    with pytest.raises(StoreError):
        engine.run(operation(transaction=mode), do)
    ended[0].result(PATIENCE)
    assert other(effects) == []
    assert engine.run(operation(transaction=mode), work("again")).result == "again"


@MODES
def test_an_interrupt_between_both_and_their_answer(engine, other, mode, monkeypatch):
    """What was not read is not the next answer, and the truth is asked for."""
    results_of = prepared._results_of

    def interrupted(driver, sends):
        if len(sends) != 3:
            return results_of(driver, sends)

        def fetch(pgconn):
            # Later, or psycopg would have the server cancel what is still under way.
            wait_until(lambda: other(effects) == ["mine"], seconds=PATIENCE, what="the COMMIT")
            raise KeyboardInterrupt
            yield

        with monkeypatch.context() as patch:
            patch.setattr(prepared.generators, "fetch_many", fetch)
            return results_of(driver, sends)

    monkeypatch.setattr(prepared, "_results_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.run(operation(transaction=mode), work("mine"))
    assert other(effects) == ["mine"]
    assert engine.run(operation(transaction=mode), work("again")).replayed


class TimeLimit(Exception):
    """As Celery raises it, from the handler of a signal."""


@MODES
def test_F9_a_time_limit_before_the_answer_is_not_told_as_failed(engine, other, mode, gate):
    """The COMMIT stands at the gate, and goes through once the limit was raised."""
    told = []

    def fails(**facts):
        told.append("failed")

    def limit(*arguments):
        other(execute, "ROLLBACK")  # the gate is open
        raise TimeLimit

    def do(lease):
        other(execute, "BEGIN")
        other(execute, "LOCK TABLE gate IN SHARE MODE")
        ours = execute("SELECT pg_backend_pid()")
        other.start(at_the_gate, ours)
        return work("mine")(lease)

    def at_the_gate(ours):
        wait_until(lambda: execute(WAITS.format(ours)), seconds=PATIENCE, what="our COMMIT")
        os.kill(os.getpid(), signal.SIGALRM)

    signals.failed.connect(fails)
    before = signal.signal(signal.SIGALRM, limit)
    try:
        with suppress(TimeLimit, StoreError):  # as the server is faster, or we are
            engine.run(operation(transaction=mode), do)
    finally:
        signal.signal(signal.SIGALRM, before)
        signals.failed.disconnect(fails)
    wait_until(lambda: other(effects) == ["mine"], seconds=PATIENCE, what="the COMMIT")
    assert told == []
    assert engine.run(operation(transaction=mode), work("again")).replayed


def test_no_transaction_is_closing_outside_of_an_attempt(store):
    assert Block.closing(connection, keys.new_token()) is None
    with store.atomic():
        assert Block.closing(connection, keys.new_token()) is None


@MODES
@pytest.mark.parametrize("point", ["after_complete", "before_commit"])
def test_an_attempt_can_be_made_to_crash_between_them(wired, engine, other, mode, point):
    engine = Engine(store_for("default"))
    warm(engine)
    with crash_at(point):
        engine.run(operation(transaction=mode), work("lost"))
    assert other(effects) == []
