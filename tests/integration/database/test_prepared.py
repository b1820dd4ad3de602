"""Statements that are prepared on Django's own connection, and where they must not be."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager, nullcontext
from datetime import timedelta

import psycopg
import pytest
from django.db import OperationalError, connection, connections, transaction
from django.db.backends.postgresql.base import Cursor, DatabaseWrapper
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from django_idempotency import signals
from django_idempotency.conf import InvalidStore, store_for
from django_idempotency.engine import Engine
from django_idempotency.exceptions import StoreError
from django_idempotency.records import State
from django_idempotency.stores.database import DatabaseStore, prepared
from django_idempotency.transactions.errors import sqlstate
from tests.integration.database import claims
from tests.integration.database.claims import (
    Boom,
    claim_request,
    effects,
    lost,
    operation,
    packed,
    won,
    work,
)
from tests.integration.database.sessions import PATIENCE, execute
from tests.pages import DOCS, table_of
from tests.services.processes import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("postgres18")]

MODES = pytest.mark.parametrize("mode", ["single", "joined", "separate"])


@pytest.fixture(autouse=True)
def session(transactional_db):
    """A session of its own for each test."""
    connection.close()
    yield
    connection.close()


@pytest.fixture
def at_once(monkeypatch):
    """Each statement is prepared when it is used for the first time."""
    monkeypatch.setattr(prepared, "USES_BEFORE", 0)


@pytest.fixture
def engine(store):
    return Engine(store)


def names():
    """The statements that are prepared in this thread's session, by their first word."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements ORDER BY prepare_time")
        return [statement.split()[0] for (statement,) in cursor.fetchall()]


def complete(store, key="key", **fields):
    lease = won(store.claim(claim_request(key, **fields)))
    return store.complete(lease, packed("mine"), retention=claims.RETENTION)


# When.


def test_from_the_third_use_on_a_connection(store):
    for number in range(2):
        complete(store, f"key {number}")
    assert names() == []
    complete(store, "third")
    assert names() == ["WITH", "UPDATE"]
    complete(store, "fourth")
    assert names() == ["WITH", "UPDATE"]
    connection.close()
    complete(store, "on another one")
    assert names() == []


@pytest.mark.usefixtures("at_once")
def test_note_is_prepared_in_the_transaction_of_its_step_and_by_itself(store):
    lease = won(store.claim(claim_request(steps=True)))
    for entry in (b"\0", b"1"):
        with store.atomic():
            work("step")(lease)
            store.note(lease, entry, duration=claims.RETENTION, held=False)
    store.note(lease, b"2", duration=claims.RETENTION, held=True)
    assert names() == ["WITH", "UPDATE"]
    runs = "SELECT sum(generic_plans + custom_plans) FROM pg_prepared_statements"
    assert execute(f"{runs} WHERE statement LIKE '%UPDATE%'") == 3
    record = store.get(lease.record_id)
    assert (record.steps, record.expires_at) == (b"\x0012", None)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("prepare", [True, False])
def test_R53_claim_of_one_key_is_not_that_of_another(prepare):
    store = DatabaseStore(prepare=prepare)
    for key in ("one", "two"):
        assert won(store.claim(claim_request(key))).request.key == key


@pytest.mark.usefixtures("at_once")
def test_nothing_is_kept_of_a_connection_that_is_gone(store):
    complete(store)
    assert connection.connection in prepared._sessions
    kept = weakref.ref(connection.connection)
    connection.close()
    gc.collect()
    assert kept() is None


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("prepare", "pid", "expected"),
    [(None, None, True), (False, None, False), (None, 1, False), (True, 1, True)],
    ids=["automatic", "off", "automatic behind a pooler", "insists behind a pooler"],
)
def test_R88_as_the_option_says(monkeypatch, prepare, pid, expected):
    if pid is not None:  # a pooler makes up the process id that it tells its clients
        monkeypatch.setattr(prepared, "_server_pid", lambda driver: pid)
    complete(DatabaseStore(prepare=prepare))
    assert bool(names()) is expected


@pytest.mark.parametrize("value", ["yes", 5])
def test_another_option_is_an_error(settings, value):
    settings.IDEMPOTENCY = {"default": {"OPTIONS": {"prepare": value}}}
    with pytest.raises(InvalidStore, match="prepare is None"):
        store_for("default")


@contextmanager
def own_cursors():
    """The class of the connection makes its cursors in its own way, as one of tenants does."""

    class Tenants(DatabaseWrapper):
        def _cursor(self, name=None):
            return super()._cursor(name)

    connection.close()
    before = connections["default"]
    connections["default"] = Tenants(before.settings_dict, "default")
    try:
        yield
    finally:
        connection.close()
        connections["default"] = before


@contextmanager
def patched():
    connection.cursor = connection.cursor
    try:
        yield
    finally:
        del connection.cursor


@contextmanager
def with_options(**options):
    connection.close()
    before = connection.settings_dict["OPTIONS"]
    connection.settings_dict["OPTIONS"] = {**before, **options}
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict["OPTIONS"] = before


@pytest.mark.parametrize(
    "options", [{"server_side_binding": True}, {"prepare_threshold": 100}], ids=str
)
def test_E025_driver_that_is_to_prepare_leaves_the_store_nothing_to_prepare(options):
    with with_options(**options):
        assert [it.id[-4:] for it in DatabaseStore(prepare=True).check()] == ["E025"]
    assert DatabaseStore(prepare=True).check() == []


@contextmanager
def driver_with(**attributes):
    """The driver's connection is changed after it was opened."""
    connection.ensure_connection()
    for name, value in attributes.items():
        setattr(connection.connection, name, value)
    try:
        yield
    finally:
        connection.close()


class Traced(psycopg.Connection):
    """What a tracer makes of the driver's connection."""


class TracedCursor(Cursor):
    """What a tracer makes of its cursors."""


WATCHED = {
    "execute wrapper": lambda: connection.execute_wrapper(
        lambda execute, *arguments: execute(*arguments)
    ),
    "logged queries": lambda: CaptureQueriesContext(connection),
    "a class with cursors of its own": own_cursors,
    "a connection whose cursor() is patched": patched,
    "server-side binding": lambda: with_options(server_side_binding=True),
    "prepare_threshold": lambda: with_options(prepare_threshold=100),
    "prepare_threshold of an open connection": lambda: driver_with(prepare_threshold=100),
    "cursors of a tracer": lambda: driver_with(cursor_factory=TracedCursor),
    "a connection of a tracer": lambda: driver_with(__class__=Traced),
}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("watched", WATCHED.values(), ids=WATCHED.keys())
def test_R88_a_cursor_of_django_where_it_is_watched(store, watched):
    with watched():
        complete(store)
        assert lost(store.claim(claim_request())).state is State.COMPLETED
        assert names() == []


@pytest.mark.usefixtures("at_once")
@MODES
def test_R88_a_transaction_begins_as_the_driver_would_begin_it(engine, mode):
    engine.run(operation("first", transaction=mode), work("first"))
    connection.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with nullcontext() if mode == "single" else transaction.atomic():
        level = engine.run(
            operation(transaction="single"), lambda lease: execute("SHOW transaction_isolation")
        )
    assert level.result == "repeatable read"


@pytest.mark.usefixtures("at_once")
def test_R88_a_connection_of_another_thread_is_refused_as_by_a_cursor(store, monkeypatch):
    complete(store)
    with monkeypatch.context() as patch:
        patch.setattr(connection, "_thread_ident", connection._thread_ident + 1)
        with pytest.raises(StoreError) as raised:
            store.get(claims.record_id("key"))
    assert "can only be used in that same thread" in str(raised.value.__cause__)


@pytest.mark.usefixtures("at_once")
def test_R88_nothing_is_sent_between_the_statements_of_a_pipeline(store):
    complete(store)
    look = connections["default"], store._texts, None, "LOOK", {"id": claims.record_id("key")}
    assert prepared.execute(*look) is not None
    with connection.connection.pipeline():
        assert prepared.execute(*look) is None


@pytest.mark.usefixtures("at_once")
def test_R88_a_health_check_finds_a_session_that_has_ended(store, other):
    complete(store)
    pid = execute("SELECT pg_backend_pid()")
    other(execute, f"SELECT pg_terminate_backend({pid}, {PATIENCE * 1000})")
    connection.health_check_enabled, connection.health_check_done = True, False
    assert store.get(claims.record_id("key")).state is State.COMPLETED


@pytest.mark.usefixtures("at_once")
def test_R88_a_connection_that_the_work_has_closed_fails_as_a_cursor_does(store):
    complete(store)
    connection.connection.close()
    with pytest.raises(StoreError) as raised:
        store.get(claims.record_id("key"))
    assert isinstance(raised.value.__cause__, OperationalError)
    assert sqlstate(raised.value) is None


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("closes", [True, False], ids=["protocol", "DEALLOCATE"])
def test_B5_a_plan_for_a_small_table_is_not_kept(store, monkeypatch, closes):
    if closes and not prepared._MAY_CLOSE:
        pytest.skip("needs libpq 17")
    monkeypatch.setattr(prepared, "_MAY_CLOSE", closes)
    monkeypatch.setattr(prepared, "USES_OF_A_PLAN", 10)
    execute_plain("VACUUM ANALYZE idempotency_record")  # no page of it is left
    for number in range(8):  # from the sixth use on the plan is kept
        complete(store, f"early {number}")
    execute_plain(
        "INSERT INTO idempotency_record SELECT gen_random_uuid(), 'scope', 'key', '', NULL,"
        " 'RELEASED', 1, gen_random_uuid(), NULL, now(), now(), now() + interval '1 d', 1, NULL, ''"
        " FROM generate_series(1, 2000)"
    )
    for number in range(8):
        complete(store, f"late {number}")
    execute("SELECT pg_stat_force_next_flush()")
    with transaction.atomic():
        complete(
            store, transaction="joined"
        )  # first of all: what follows another's statement is not prepared
        assert whole_reads() == 0
    assert names() == ["WITH", "UPDATE"]


def whole_reads():
    return execute(
        "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'idempotency_record'"
    )


# What a duplicate costs.


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("mode", ["single", "joined"])
def test_B2_R25_duplicate_is_one_statement_and_writes_nothing(store, mode):
    complete(store)
    assert lost(store.claim(claim_request())).state is State.COMPLETED

    def duplicate():
        with store.atomic():
            assert lost(store.claim(claim_request(transaction=mode))).state is State.COMPLETED
            assert execute("SELECT pg_current_xact_id_if_assigned()") is None
            return execute(
                "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()"
                " AND locktype = 'advisory'"
            )

    assert duplicate() == 0
    assert names() == ["WITH", "UPDATE", *(["SELECT"] if mode == "single" else [])]

    def written():
        before = execute("SELECT pg_current_wal_insert_lsn()")
        for _ in range(20):
            duplicate()
        return execute(f"SELECT pg_current_wal_insert_lsn() - '{before}'")

    # The server itself writes now and then, and so do others that use it.
    wait_until(lambda: written() == 0, seconds=PATIENCE, what="duplicates that write nothing")


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("mode", ["joined", "separate"])
def test_R49_claim_that_another_session_has_not_committed_is_in_progress(store, other, mode):
    complete(store, "warm")
    block = transaction.atomic()
    other(block.__enter__)
    won(other(store.claim, claim_request(transaction=mode)))
    record = lost(store.claim(claim_request(transaction=mode)))
    assert (record.state, record.epoch) == (State.IN_PROGRESS, 0)
    other(block.__exit__, None, None, None)
    assert lost(store.claim(claim_request(transaction=mode))).epoch > 0


# What they do is what a cursor does.


REQUESTS = {
    "plain": {},
    "letters": {"operation": "Zahlung: 5 € — ✓"},
    "no fingerprint": {"fingerprints": ()},
    "several fingerprints": {"fingerprints": (b"\0" * 32, b"\xff" * 32)},
    "without an end": {"on_stale": "refuse"},
    "long": {"lease": timedelta(days=400, microseconds=1), "retention": timedelta(days=4000)},
}


@pytest.mark.parametrize("fields", REQUESTS.values(), ids=REQUESTS.keys())
def test_the_row_is_the_one_that_a_cursor_writes(store, monkeypatch, fields):
    rows = []
    for key, before in {"cursor": 100, "prepared": 0}.items():
        monkeypatch.setattr(prepared, "USES_BEFORE", before)
        lease = won(store.claim(claim_request(key, **fields)))
        claimed = store.get(lease.record_id)
        store.complete(lease, b"\0\xff result", retention=timedelta(days=3))
        completed = lost(store.claim(claim_request(key, **fields)))
        rows.append(
            [
                (
                    one.scope,
                    one.operation,
                    one.fingerprint,
                    one.state,
                    one.attempts,
                    one.result,
                    one.error,
                    one.lease_until and one.lease_until - one.updated_at,
                    one.expires_at and round((one.expires_at - one.updated_at).total_seconds()),
                )
                for one in (claimed, completed)
            ]
        )
        assert abs(completed.now.timestamp() * 1_000_000 - completed.epoch) < 60_000_000
    assert rows[0] == rows[1]


@pytest.mark.usefixtures("at_once")
def test_R88_text_is_itself_in_another_encoding_of_the_session(store):
    complete(store, operation="Größe")
    execute("SET client_encoding = 'LATIN1'")
    complete(store, "other", operation="Größe")
    execute("SET client_encoding = 'UTF8'")
    assert store.get(claims.record_id("other")).operation == "Größe"


@pytest.mark.parametrize("before", [0, 100], ids=["prepared", "cursor"])
def test_R88_a_day_has_24_hours_in_every_time_zone_of_the_session(store, monkeypatch, before):
    monkeypatch.setattr(prepared, "USES_BEFORE", before)
    execute("SET TimeZone = 'Europe/Berlin'")
    for days in (120, 240):  # at least one of them beyond a change of the clocks
        lease = won(store.claim(claim_request(f"{days}")))
        store.complete(lease, b"", retention=timedelta(days=days))
        record = store.get(lease.record_id)
        assert record.expires_at - record.updated_at == timedelta(days=days)


@pytest.mark.usefixtures("at_once")
def test_text_that_postgresql_does_not_hold_aborts_nothing(store):
    complete(store)
    with transaction.atomic():
        with pytest.raises(StoreError):
            store.claim(claim_request("other", operation="nul \0"))
        assert execute("SELECT 1") == 1


@pytest.mark.usefixtures("at_once")
def test_errors_are_those_of_a_cursor(store, other):
    complete(store)
    connection.errors_occurred = False
    execute("SET lock_timeout = 50")
    other(execute, "BEGIN")
    other(execute, "LOCK TABLE idempotency_record")
    with pytest.raises(StoreError) as raised:
        store.claim(claim_request("other"))
    other(execute, "ROLLBACK")
    error = raised.value.__cause__
    assert isinstance(error, OperationalError)
    assert error.__cause__.sqlstate == "55P03"
    assert connection.errors_occurred


@pytest.mark.usefixtures("at_once")
def test_a_transaction_that_must_be_rolled_back_runs_nothing(store):
    complete(store)
    with transaction.atomic():
        connection.set_rollback(True)
        with pytest.raises(StoreError) as raised:
            store.claim(claim_request("other"))
        assert isinstance(raised.value.__cause__, TransactionManagementError)


def round_trips(of, mode):
    """How many the documentation has."""
    rows = table_of(DOCS / "reference" / "database.md", "### Round trips")
    [counts] = [counts for what, *counts in rows if what == of]
    return int(counts[["joined", "single", "separate"].index(mode)])


@pytest.mark.leg("postgres18", "mariadb")
@MODES
@pytest.mark.parametrize("prepares", [True, False], ids=["prepared", "not prepared"])
def test_B4_round_trips_of_a_new_key_and_of_a_duplicate(wire, at_once, mode, prepares):
    server = "MariaDB"
    if connection.vendor == "postgresql":
        server = f"PostgreSQL, {'prepared' if prepares else 'not prepared'}"
    engine = Engine(DatabaseStore(prepare=None if prepares else False))
    engine.run(operation("first", transaction=mode), work("first"))
    for what, replayed in {"a new key": False, "a duplicate": True}.items():
        wire.spoken.clear()
        assert engine.run(operation(transaction=mode), work("mine")).replayed is replayed
        assert wire.round_trips == round_trips(f"{server}: {what}", mode)


@pytest.mark.usefixtures("at_once")
def test_B4_round_trips_of_work_without_a_statement(wire, engine):
    engine.run(operation("first", transaction="joined"), work("first"))
    wire.spoken.clear()
    engine.run(operation(transaction="joined"), lambda lease: "nothing written")
    assert wire.round_trips == 3


@pytest.mark.usefixtures("at_once")
def test_B4_round_trips_of_another_try(wire, engine, store):
    engine.run(operation("first", transaction="single"), work("first"))
    for key in ("warm", "key"):
        claims.failed(store, claim_request(key))
        wire.spoken.clear()
        engine.run(operation(key, transaction="single"), work(key))
    assert wire.round_trips == 3


@pytest.mark.usefixtures("at_once")
def test_B4_round_trips_of_a_plan_that_stays(wire, monkeypatch):
    """A libpq before 17 cannot tell PgBouncer to let go of it."""
    monkeypatch.setattr(prepared, "_MAY_CLOSE", False)
    monkeypatch.setattr(prepared, "USES_OF_A_PLAN", 3)
    engine = Engine(DatabaseStore(prepare=True))
    for number in range(4):
        engine.run(operation(str(number), transaction="single"), work(str(number)))
    wire.spoken.clear()
    engine.run(operation(transaction="single"), work("mine"))
    assert wire.round_trips == 3


@pytest.mark.usefixtures("at_once")
def test_I1_a_claim_that_is_interrupted_leaves_no_answer_to_the_next_one(
    store, engine, monkeypatch
):
    """BEGIN, lock and look are sent together: what was not read is not the next answer."""

    def interrupted(pgconn):
        raise KeyboardInterrupt
        yield

    engine.run(operation("first", transaction="single"), work("first"))
    with store.atomic():
        with monkeypatch.context() as patch:
            patch.setattr(prepared.generators, "fetch_many", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.claim(claim_request(transaction="single"))
        assert connection.connection.closed
        transaction.set_rollback(True)
    assert engine.run(operation(transaction="single"), work("mine")).result == "mine"
    assert effects() == ["first", "mine"]


@pytest.mark.usefixtures("at_once")
def test_R60_a_session_that_has_ended_before_a_claim_tells_why(store, engine, other):
    engine.run(operation("first", transaction="single"), work("first"))
    pid = execute("SELECT pg_backend_pid()")
    other(execute, f"SELECT pg_terminate_backend({pid}, {PATIENCE * 1000})")
    with pytest.raises(StoreError) as raised, store.atomic():
        store.claim(claim_request(transaction="single"))
    assert sqlstate(raised.value) == "57P01"
    assert engine.run(operation(transaction="single"), work("mine")).result == "mine"


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "failed"])
def test_R57_R58_single_rolls_its_savepoint_back_with_the_hooks_of_the_work(
    engine, monkeypatch, kept
):
    told = []
    # Its lock is held until the record is written: there is no second transaction.
    settle = "django_idempotency.engine.settle_single"
    monkeypatch.setattr(settle, lambda *_: pytest.fail("rolled back"))

    def fails(lease):
        work("lost")(lease)
        transaction.on_commit(lambda: told.append("lost"))
        raise Boom

    engine.run(operation("first", transaction="single"), work("first"))
    with nullcontext() if kept else pytest.raises(Boom):
        engine.run(operation(transaction="single"), fails, (lambda error: "kept") if kept else None)
    assert (effects(), told) == (["first"], [])
    again = engine.run(operation(transaction="single"), work("again"))
    assert again.result == ("kept" if kept else "again")


@pytest.mark.usefixtures("at_once")
def test_what_is_written_between_claim_and_work_of_single_stands(engine):
    """A receiver may keep a journal in this database."""
    engine.run(operation("first", transaction="single"), work("first"))

    def journal(**told):
        work("counted")(None)

    def fails(lease):
        work("lost")(lease)
        raise Boom

    signals.claimed.connect(journal)
    try:
        with pytest.raises(Boom):
            engine.run(operation(transaction="single"), fails)
    finally:
        signals.claimed.disconnect(journal)
    assert effects() == ["first", "counted"]


# What was prepared is gone, or has changed.


def deallocate():
    execute_plain("DEALLOCATE ALL")


def execute_plain(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)


@contextmanager
def migrated(other):
    """A migration, from another session, that changes the type of a column which is read."""
    other(execute_plain, "ALTER TABLE idempotency_record ALTER COLUMN operation TYPE varchar(300)")
    try:
        yield
    finally:
        other(
            execute_plain, "ALTER TABLE idempotency_record ALTER COLUMN operation TYPE varchar(255)"
        )


@MODES
@pytest.mark.parametrize("event", ["deallocated", "migrated"])
def test_I1_what_was_prepared_is_gone_and_a_claim_runs_all_the_same(engine, other, mode, event):
    for number in range(4):  # each statement, those of a replay too
        engine.run(operation(str(number), transaction=mode), work(str(number)))
        assert engine.run(operation(str(number), transaction=mode), work("again")).replayed
    assert len(names()) >= 2
    if event == "deallocated":
        deallocate()
    with migrated(other) if event == "migrated" else nullcontext():
        assert engine.run(operation("0", transaction=mode), work("again")).replayed
        assert engine.run(operation("new", transaction=mode), work("new")).result == "new"
        for _ in range(4):
            assert engine.run(operation("new", transaction=mode), work("again")).replayed
    assert effects() == ["0", "1", "2", "3", "new"]
    if event == "deallocated":
        assert names() == []  # not in this session any more


@pytest.mark.usefixtures("at_once")
def test_R60_the_session_ends_where_what_was_prepared_is_gone(store, monkeypatch):
    ask = prepared._ask

    def ends(driver, send, *arguments):
        if arguments == (b"ROLLBACK",):
            driver.close()
        return ask(driver, send, *arguments)

    complete(store)
    deallocate()
    monkeypatch.setattr(prepared, "_ask", ends)
    with pytest.raises(StoreError), transaction.atomic():
        store.claim(claim_request("other"))
    assert store.get(claims.record_id("key")).state is State.COMPLETED


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("does", ["get", "claim", "complete"])
def test_I1_what_was_prepared_is_gone_and_a_statement_by_itself_runs_once(store, does):
    complete(store, "first")
    store.get(claims.record_id("first"))
    lease = won(store.claim(claim_request()))
    deallocate()
    if does == "get":
        assert store.get(lease.record_id).state is State.IN_PROGRESS
    elif does == "claim":
        assert lost(store.claim(claim_request())).state is State.IN_PROGRESS
    else:
        assert store.complete(lease, packed("mine"), retention=claims.RETENTION) is not None
    assert names() == []


@pytest.mark.usefixtures("at_once")
@MODES
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
def test_I1_a_claim_in_the_transaction_of_the_caller_takes_none_of_it(engine, mode, begun):
    engine.run(operation("first", transaction=mode), work("first"))
    deallocate()
    with transaction.atomic():
        if begun:
            work("callers")(None)
        assert engine.run(operation("first", transaction=mode), work("again")).replayed
        assert engine.run(operation(transaction=mode), work("mine")).result == "mine"
    assert effects() == ["first", *["callers"][:begun], "mine"]


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("mode", ["single", "joined"])
def test_R60_work_that_deallocates_rolls_back_whole_and_its_retry_runs(engine, mode):
    def work_that_deallocates(lease):
        work("lost")(lease)
        deallocate()
        return "lost"

    engine.run(operation("first", transaction=mode), work("first"))
    with pytest.raises(StoreError):
        engine.run(operation(transaction=mode), work_that_deallocates)
    assert effects() == ["first"]
    assert engine.run(operation(transaction=mode), work("mine")).result == "mine"
    assert effects() == ["first", "mine"]


@pytest.mark.usefixtures("at_once")
def test_I1_a_completion_is_prepared_only_right_after_a_claim(engine, store):
    engine.run(operation("first"), work("first"))
    lease = won(store.claim(claim_request(transaction="joined")))
    with transaction.atomic():
        work("mine")(lease)
        store.complete(lease, packed("mine"), retention=claims.RETENTION)
    deallocate()  # nothing has shown since that the session has its statements
    with transaction.atomic():
        work("again")(lease)
        store.complete(lease, packed("mine"), retention=claims.RETENTION)
        assert store.get(lease.record_id).state is State.COMPLETED
    assert effects() == ["first", "mine", "again"]
