"""R88: PgBouncer in transaction mode, which gives each transaction whatever session is free."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.db import connection, connections

import django_idempotency as idempotency
from django_idempotency import InProgress
from django_idempotency.claims import ClaimRequest
from django_idempotency.leases import Lease
from django_idempotency.stores.database import DatabaseStore, prepared
from tests.acceptance.processes.clients import post
from tests.acceptance.processes.conftest import Serve
from tests.acceptance.processes.test_kills import run_as_soon_as_the_key_is_free
from tests.app.models import Effect
from tests.services import or_skip
from tests.services.pgbouncer import PgBouncer
from tests.services.postgres import URL_VARIABLE
from tests.services.threads import run_in_threads

pytestmark = [pytest.mark.processes, pytest.mark.leg("postgres18")]

MODES = ["single", "joined", "separate"]
SESSIONS = 4


@pytest.fixture(scope="module")
def started(django_db_setup: None) -> Iterator[PgBouncer]:
    with or_skip(lambda: PgBouncer(os.environ[URL_VARIABLE], sessions=SESSIONS)) as bouncer:
        yield bouncer


@pytest.fixture
def bouncer(started: PgBouncer, transactional_db: None) -> PgBouncer:
    """PgBouncer, whose sessions are all open."""
    name = str(connections["default"].settings_dict["NAME"])
    url = started.url.replace("/postgres?", f"/{name}?")
    clients = [psycopg.connect(url, prepare_threshold=None) for _ in range(SESSIONS)]
    for client in clients:
        client.execute("SELECT 1")  # in a transaction, so each takes another session
    for client in clients:
        client.commit()
        client.close()
    return started


@pytest.fixture
def serve_behind(serve: Serve, bouncer: PgBouncer) -> Serve:
    """`serve` with its database behind PgBouncer; a client's connection outlives its requests."""
    settings = "tests.acceptance.processes.pgbouncer_settings"
    env = {"DJANGO_SETTINGS_MODULE": settings, URL_VARIABLE: bouncer.url}
    return partial(serve, kind="behind", env=env, CONN_MAX_AGE=60)


@pytest.fixture
def behind(bouncer: PgBouncer) -> Iterator[None]:
    """The connections of this process go through PgBouncer, too."""
    default = connections["default"]
    default.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(default.settings_dict, "PORT", str(bouncer.port))
        patch.setitem(default.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", True)
        yield
        default.close()


NOTED = """
CREATE TABLE written (place serial, what text, transaction bigint, session int);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
INSERT INTO written (what, transaction, session)
VALUES (lower(TG_OP) || ' ' || TG_ARGV[0], txid_current(), pg_backend_pid()); RETURN NULL; END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE ON idempotency_record
FOR EACH ROW EXECUTE FUNCTION note('record');
CREATE TRIGGER note AFTER INSERT OR UPDATE ON app_effect
FOR EACH ROW EXECUTE FUNCTION note('effect')
"""


@pytest.fixture
def writes(transactional_db: None) -> Iterator[Callable[[], list[Any]]]:
    """`writes()`: what has been written, with the transaction and the session of each write."""
    with connection.cursor() as cursor:
        cursor.execute(NOTED)

    def taken() -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT what, transaction, session FROM written ORDER BY place")
            return cursor.fetchall()

    yield taken
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION note() CASCADE; DROP TABLE written")


# Through real views, with server-side binding.


def test_R88_single_after_a_kill_a_retry_runs_as_soon_as_pgbouncer_has_noticed(serve_behind, work):
    server, work = serve_behind("single", lease=600), work()
    work.kill(server)
    ran = run_as_soon_as_the_key_is_free(server, work)[-1]
    again, other = work.post(server), post(server, work.name, {**work.body, "then": "created"})
    assert (ran.status, ran.replayed, work.effects) == (201, False, 1)
    assert (again.replayed, again.body) == (True, ran.body)
    assert (other.status, other.code) == (422, "idempotency_key_reused")


# Through `run`, in this process.


@pytest.mark.usefixtures("behind")
def test_R88_R98_neither_a_role_nor_a_path_is_left_in_a_session() -> None:
    """They are set for one transaction at a time, and each transaction has another session."""
    place = json.dumps(["public.idempotency_record", "public", "pg_read_all_data"])
    store = DatabaseStore()
    with store.at(place):
        assert [store.get(uuid4()) for _ in range(2 * SESSIONS)] == [None] * 2 * SESSIONS
    with store.in_schema("public"):
        assert [store.sweep() for _ in range(2 * SESSIONS)] == [0] * 2 * SESSIONS
    left = set()
    with connection.cursor() as cursor:
        for _ in range(2 * SESSIONS):
            cursor.execute(
                "SELECT current_setting('role'), current_setting('search_path'), pg_backend_pid()"
            )
            left.add(cursor.fetchone())
    assert len(left) == SESSIONS
    assert {found[:2] for found in left} == {("none", '"$user", public')}


EXPECTED = {
    # Transactions are numbered in the order in which they wrote first.
    "single": [("insert effect", 0), ("insert record", 0)],
    "joined": [("insert record", 0), ("insert effect", 1), ("update record", 1)],
    "separate": [("insert record", 0), ("insert effect", 1), ("update record", 2)],
}


@pytest.mark.usefixtures("behind")
@pytest.mark.parametrize("mode", MODES)
def test_R88_claim_work_and_completion_are_in_their_transactions(mode, writes):
    def pay(lease: object) -> str:
        Effect.objects.create(name="pay")
        with pytest.raises(InProgress):
            run_in_threads(1, lambda index: call())
        return "paid"

    def call(payload: int = 1) -> Any:
        return idempotency.run(pay, key="k", scope="s", payload=payload, transaction=mode)

    first, again = call(), call()
    with pytest.raises(idempotency.FingerprintMismatch):
        call(payload=2)
    assert [first.result, again.result] == ["paid", "paid"]
    assert [first.replayed, again.replayed] == [False, True]
    written = writes()
    places = list(dict.fromkeys(transaction for _, transaction, _ in written))
    found = [(what, places.index(transaction)) for what, transaction, _ in written]
    assert found == EXPECTED[mode]
    assert (len({session for *_, session in written}) > 1) == (mode != "single")


@pytest.mark.usefixtures("behind")
def test_R88_S5_step_and_its_note_are_in_one_transaction(writes):
    store = DatabaseStore()
    request = ClaimRequest(uuid4(), scope="s", key="k", steps=True)
    lease = store.claim(request)
    assert isinstance(lease, Lease)
    for number in range(2):
        with store.atomic():
            Effect.objects.create(name=f"step {number}")
            store.note(lease, b"%d" % number, duration=request.lease, held=False)
    store.note(lease, b"by itself", duration=request.lease, held=False)
    record = store.get(lease.record_id)
    assert record is not None
    assert record.steps == b"01by itself"
    written = writes()
    places = list(dict.fromkeys(transaction for _, transaction, _ in written))
    assert [(what, places.index(transaction)) for what, transaction, _ in written] == [
        ("insert record", 0),
        *(("insert effect", 1), ("update record", 1)),
        *(("insert effect", 2), ("update record", 2)),
        ("update record", 3),
    ]


@pytest.mark.usefixtures("behind")
@pytest.mark.parametrize("mode", MODES)
def test_R88_work_that_fails_leaves_nothing_and_the_next_try_runs(mode):
    def fail(lease: object) -> None:
        Effect.objects.create(name="failed")
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError):
        idempotency.run(fail, key="k", scope="s", transaction=mode)
    second = idempotency.run(lambda lease: 1, key="k", scope="s", transaction=mode)
    assert (second.result, second.replayed) == (1, False)
    assert Effect.objects.count() == (1 if mode == "separate" else 0)


@pytest.mark.usefixtures("behind")
@pytest.mark.parametrize("mode", ["single", "joined"])
def test_R88_session_that_ends_before_its_commit_is_an_error_of_the_store(mode, monkeypatch):
    def pay(lease: object) -> int:
        monkeypatch.setattr(connection, "commit", commit)
        return Effect.objects.create(name="pay").pk

    def commit() -> None:
        monkeypatch.undo()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            session = cursor.fetchone()
        name = str(connection.settings_dict["NAME"])
        with psycopg.connect(os.environ[URL_VARIABLE], dbname=name, autocommit=True) as client:
            client.execute("SELECT pg_terminate_backend(%s, 10000)", session)
        # PgBouncer says it, too; what it sends is there before the COMMIT is sent.
        assert select.select([connection.connection.fileno()], [], [], 10)[0]
        connection.commit()

    with pytest.raises(idempotency.StoreError, match="lost at the COMMIT"):
        idempotency.run(pay, key="k", scope="s", transaction=mode)
    assert Effect.objects.count() == 0
    again = idempotency.run(pay_once, key="k", scope="s", transaction=mode)
    assert (again.replayed, Effect.objects.count()) == (False, 1)


def pay_once(lease: object) -> int:
    return Effect.objects.create(name="pay").pk


@pytest.mark.usefixtures("behind")
@pytest.mark.parametrize("mode", MODES)
def test_R88_threads_that_race_and_wait_run_once(mode):
    """More of them than there are sessions: who waits has none."""

    def pay(lease: object) -> int:
        return Effect.objects.create(name="pay").pk

    outcomes = run_in_threads(
        4 * SESSIONS,
        lambda index: idempotency.run(pay, key="k", scope="s", wait=60, transaction=mode),
        seconds=90,
    )
    assert sum(not outcome.replayed for outcome in outcomes) == 1
    assert {outcome.result for outcome in outcomes} == {Effect.objects.get().pk}


@pytest.mark.usefixtures("behind")
@pytest.mark.parametrize("mode", MODES)
def test_R88_nothing_is_prepared_in_sessions_that_are_not_ours(mode, monkeypatch):
    monkeypatch.setattr(prepared, "USES_BEFORE", 0)
    for number in range(3):
        for _ in range(SESSIONS + 1):
            idempotency.run(
                lambda lease: Effect.objects.create().pk,
                key=f"key {number}",
                scope="s",
                transaction=mode,
            )
    assert Effect.objects.count() == 3
    for _ in range(SESSIONS):
        with connection.cursor() as cursor:
            cursor.execute("SELECT name FROM pg_prepared_statements")
            assert cursor.fetchall() == []
