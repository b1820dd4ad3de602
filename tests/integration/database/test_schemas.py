"""A schema for each tenant, a role, a variable under row level security: an attempt stays there."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager, suppress
from datetime import timedelta
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core import checks
from django.db import OperationalError, connection, connections, transaction

import django_idempotency as idempotency
from django_idempotency import StoreError
from django_idempotency.engine import Engine
from django_idempotency.engine.waiting import poller
from django_idempotency.records import State
from django_idempotency.stores.database import DatabaseStore, prepared
from django_idempotency.stores.memory import MemoryStore
from tests.integration.database import claims
from tests.integration.database.claims import Boom, claim_request, lost, operation, packed, won
from tests.integration.database.sessions import PATIENCE, Session, execute
from tests.integration.database.tenants import TENANTS, go_to, quoted, rows
from tests.services.processes import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.leg("postgres18", "postgres16"),
]

MOMENT = timedelta(seconds=1)
MODES = pytest.mark.parametrize("mode", ["single", "joined", "separate"])


@pytest.fixture
def sessions():
    """Two sessions, each for a tenant."""
    made = [Session(), Session()]
    yield made
    for session in made:
        session.close()


@pytest.mark.parametrize("mode", ["joined", "separate"])
def test_R98_I10_a_lease_is_renewed_in_the_schema_of_its_claim(store, tenants, sessions, mode):
    """Beside the same key of another tenant, whose attempt has ended."""
    leases = []
    for session, tenant in zip(sessions, tenants, strict=True):
        session(go_to, tenant)
        leases.append(won(session(store.claim, claim_request(transaction=mode, lease=MOMENT))))
    assert store.renew(leases, timedelta(hours=1)) == set(leases)
    for tenant, lease in zip(tenants, leases, strict=True):
        left = "lease_until > now() + interval '59 minutes', epoch"
        assert rows(tenant, left) == [(True, lease.fencing_token)]
    sessions[1](store.release, leases[1])
    assert store.renew(leases, timedelta(hours=1)) == {leases[0]}


def test_R98_place_is_that_of_one_store_and_a_lease_has_its_own(store, tenants, sessions):
    """Within `at` the calls of the store are there; those of another store are where they were."""
    leases = []
    for session, tenant in zip(sessions, tenants, strict=True):
        session(go_to, tenant)
        leases.append(won(session(store.claim, claim_request(transaction="separate"))))
    record_id = leases[0].record_id
    with store.at(leases[0].place):
        assert store.get(record_id).token == leases[0].token
        assert DatabaseStore().get(record_id) is None  # in public
        store.complete(leases[1], packed("done"), retention=claims.RETENTION)
        assert store.get(record_id).state is State.IN_PROGRESS
    assert [rows(tenant) for tenant in tenants] == [[("IN_PROGRESS", 1)], [("COMPLETED", 1)]]


def test_R98_long_work_of_two_tenants_keeps_its_leases(tenants, sessions):
    """As a user sees it: the retries of both find them at work, long after the first lease."""
    working, go_on = threading.Barrier(3), threading.Event()

    def call(tenant):
        go_to(tenant)

        def work(lease):
            working.wait(PATIENCE)
            assert go_on.wait(PATIENCE)
            lease.check()
            return tenant

        return idempotency.run(work, key="k", scope="s", lease=1)

    calls = [s.start(call, tenant) for s, tenant in zip(sessions, tenants, strict=True)]
    working.wait(PATIENCE)
    renewed = "SELECT bool_and(lease_until > created_at + interval '3 seconds') FROM "
    for tenant in tenants:
        told = f"{renewed}{quoted(tenant)}.idempotency_record"
        wait_until(lambda told=told: execute(told), seconds=PATIENCE, what="renewals")
        go_to(tenant)
        with pytest.raises(idempotency.InProgress):
            idempotency.run(lambda lease: "twice", key="k", scope="s", lease=1)
    go_on.set()
    assert [each.result(PATIENCE).result for each in calls] == list(tenants)
    assert [rows(tenant) for tenant in tenants] == [[("COMPLETED", 1)]] * 2


def waiting(mode="separate"):
    """An operation that waits, and lets its connection go meanwhile, as a request does."""
    given = operation(transaction=mode)
    object.__setattr__(given, "wait", timedelta(seconds=PATIENCE))
    object.__setattr__(given, "closes_connections", True)
    return given


@pytest.mark.parametrize("max_age", [0, 60])
def test_R98_I10_each_of_two_tenants_that_wait_gets_its_own_answer(
    store, tenants, sessions, monkeypatch, max_age
):
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", max_age)
    owners, waiters = sessions, [Session(), Session()]
    answered = won(store.claim(claim_request(transaction="separate")))  # where the poller's begins
    store.complete(answered, packed("of public"), retention=claims.RETENTION)
    leases = []
    for owner, tenant in zip(owners, tenants, strict=True):
        owner(go_to, tenant)
        leases.append(won(owner(store.claim, claim_request(transaction="separate"))))

    def wait(tenant):
        go_to(tenant)
        given = waiting()
        outcome = Engine(store).run(given, lambda lease: "again")
        return outcome.result, outcome.replayed

    try:
        answers = [s.start(wait, tenant) for s, tenant in zip(waiters, tenants, strict=True)]
        there = poller._waiters
        wait_until(lambda: len(there.get(store, ())) == 2, seconds=PATIENCE, what="two that wait")
        order = (1, 0)
        for number in order:
            result = packed(f"of {tenants[number]}")
            owners[number](store.complete, leases[number], result, retention=claims.RETENTION)
            assert answers[number].result(PATIENCE) == (f"of {tenants[number]}", True)
    finally:
        for session in waiters:
            session.close()


@pytest.mark.parametrize("max_age", [0, 60])
@pytest.mark.parametrize("mode", ["joined", "separate"])
@pytest.mark.parametrize("how", ["role", "search_path", "search_path of a coroutine"])
def test_R98_who_waits_and_then_runs_is_where_it_was(
    store, tenants, sessions, monkeypatch, max_age, how, mode
):
    """Its connection was let go meanwhile: the new one knows nothing of what was set before."""
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", max_age)
    owner, waiter = sessions
    owner(go_to, tenants[0])
    lease = won(owner(store.claim, claim_request(transaction="separate")))

    def wait():
        go_to(tenants[0])
        if how == "role":
            execute("SET ROLE pg_write_all_data")

        def work(lease):
            return [execute("SELECT current_schema()"), execute("SELECT current_user")]

        if how == "search_path of a coroutine":
            return async_to_sync(Engine(store).arun)(waiting(mode), sync_to_async(work)).result
        return Engine(store).run(waiting(mode), work).result

    with granted("pg_write_all_data", tenants[0]):
        answer = waiter.start(wait)
        wait_until(lambda: poller._waiters.get(store), seconds=PATIENCE, what="one that waits")
        owner(store.fail, lease, "builtins.OSError")
        user = "pg_write_all_data" if how == "role" else execute("SELECT current_user")
        assert answer.result(PATIENCE) == [tenants[0], user]
    assert rows(tenants[0]) == [("COMPLETED", 2)]


@pytest.mark.parametrize("ends", ["failed", "completed"])
@pytest.mark.parametrize("how", ["thread", "coroutine"])
def test_R98_I10_who_waits_on_another_store_is_where_it_was(tenants, sessions, how, ends):
    """The store knows no schema: the work, and what the caller does then, would be in another."""
    store, [_, waiter] = MemoryStore(), sessions
    lease = won(store.claim(claim_request(transaction="separate")))

    def where(lease=None):
        return execute("SELECT current_schema()")

    def wait():
        go_to(tenants[0])
        if how == "coroutine":
            found = async_to_sync(Engine(store).arun)(waiting(), sync_to_async(where)).result
        else:
            found = Engine(store).run(waiting(), where).result
        return found, where()

    answer = waiter.start(wait)
    wait_until(lambda: poller._waiters.get(store), seconds=PATIENCE, what="one that waits")
    if ends == "failed":
        store.fail(lease, "builtins.OSError")
    else:
        store.complete(lease, packed("done"), retention=claims.RETENTION)
    assert answer.result(PATIENCE) == (tenants[0] if ends == "failed" else "done", tenants[0])


def test_R98_coroutine_beside_one_that_waits_is_where_it_was(tenants, sessions):
    """It opens the connection of their thread again, which the one that waits has closed."""
    store, [_, waiter] = MemoryStore(), sessions
    lease = won(store.claim(claim_request(transaction="separate")))

    def where(lease=None):
        return execute("SELECT current_schema()")

    async def both():
        called = asyncio.create_task(Engine(store).arun(waiting(), sync_to_async(where)))
        await asyncio.to_thread(
            wait_until, lambda: poller._waiters.get(store), seconds=PATIENCE, what="one that waits"
        )
        found = await sync_to_async(where)()
        store.fail(lease, "builtins.OSError")
        return found, (await called).result

    def wait():
        go_to(tenants[0])
        return async_to_sync(both)()

    assert waiter(wait) == (tenants[0], tenants[0])


@contextmanager
def granted(role, tenant):
    execute(f"GRANT ALL ON SCHEMA {quoted(tenant)} TO {role}")
    execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {quoted(tenant)} TO {role}")
    yield


@MODES
@pytest.mark.parametrize("end", ["COMPLETED", "FAILED"])
@pytest.mark.parametrize("elsewhere", [TENANTS[1], "nowhere"])
def test_R98_work_that_switches_the_tenant_ends_where_it_was_claimed(
    store, tenants, mode, end, elsewhere
):
    """Also if the search path leads to no table at all: its error would abort the work."""
    go_to(tenants[0])

    def work(lease):
        go_to(elsewhere)
        if end == "FAILED":
            raise Boom
        return "done"

    with suppress(Boom):
        assert Engine(store).run(operation(transaction=mode), work).stored
    go_to("public")
    assert rows(tenants[0]) == [(end, 1)]
    assert [rows(tenants[1]), rows("public")] == [[], []]


def test_R98_single_in_two_schemas_holds_two_locks(store, tenants, sessions):
    """A nested attempt of another tenant, and one in another session: neither is a duplicate."""

    def work(lease):
        go_to(tenants[1])
        inner = Engine(store).run(operation(transaction="single"), lambda lease: "inner")
        assert sessions[0](call, tenants[0]) == "in progress"
        go_to(tenants[0])
        with pytest.raises(idempotency.InProgress):
            Engine(store).run(operation(transaction="single"), lambda lease: "nested")
        return inner.result

    def call(tenant):
        go_to(tenant)
        try:
            return Engine(store).run(operation(transaction="single"), lambda lease: "mine").result
        except idempotency.InProgress:
            return "in progress"

    go_to(tenants[0])
    assert Engine(store).run(operation(transaction="single"), work).result == "inner"
    assert [rows(tenant) for tenant in tenants] == [[("COMPLETED", 1)]] * 2


@pytest.mark.parametrize("mode", ["joined", "separate"])
def test_R98_an_end_on_a_fresh_connection_is_in_the_schema_of_the_claim(store, tenants, mode):
    """The work's session is lost: the tenant's record fails, and another tenant's goes on."""
    leases = []
    for tenant in reversed(tenants):
        go_to(tenant)
        leases.append(won(store.claim(claim_request(transaction="separate"))))
    connection.close()
    store.fail(leases[1], "builtins.OSError")
    assert [rows(tenant, "state") for tenant in tenants] == [[("FAILED",)], [("IN_PROGRESS",)]]
    go_to(tenants[0])

    def work(lease):
        pid = execute("SELECT pg_backend_pid()")
        with another_session() as other:
            other(execute, f"SELECT pg_terminate_backend({pid}, {PATIENCE * 1000})")
        return "done"

    if mode == "separate":
        assert Engine(store).run(operation(transaction=mode), work).stored
    else:
        with pytest.raises((OperationalError, StoreError)):
            Engine(store).run(operation(transaction=mode), work)
    expected = "COMPLETED" if mode == "separate" else "RELEASED"
    connection.close()
    assert rows(tenants[0], "state") == [(expected,)]
    assert rows(tenants[1], "state") == [("IN_PROGRESS",)]
    assert rows("public") == []


@contextmanager
def another_session():
    session = Session()
    try:
        yield session
    finally:
        session.close()


# Prepared statements.


def test_R88_R98_a_prepared_statement_follows_the_search_path(store, tenants, monkeypatch):
    """On one connection, to and fro: each claim is planned for the path of its moment."""
    monkeypatch.setattr(prepared, "USES_BEFORE", 0)
    for number in range(3):
        for tenant in tenants:
            go_to(tenant)
            lease = won(store.claim(claim_request(f"key {number}", transaction="separate")))
            go_to(tenants[0])
            store.complete(lease, packed(tenant), retention=claims.RETENTION)
            go_to(tenant)
            assert lost(store.claim(claim_request(f"key {number}"))).result == packed(tenant)
    assert [len(rows(tenant)) for tenant in tenants] == [3, 3]
    assert execute("SELECT count(*) FROM pg_prepared_statements") == 3


def test_R88_a_session_prepares_the_statements_of_a_few_schemas_only(store, tenants, monkeypatch):
    monkeypatch.setattr(prepared, "USES_BEFORE", 0)
    monkeypatch.setattr(prepared, "PREPARED_AT_MOST", 2)
    for tenant in (*tenants, *tenants):
        go_to(tenant)
        key = f"key {uuid4()}"
        lease = won(store.claim(claim_request(key, transaction="separate")))
        store.complete(lease, packed("mine"), retention=claims.RETENTION)
    assert execute("SELECT count(*) FROM pg_prepared_statements") == 2
    assert [len(rows(tenant)) for tenant in tenants] == [2, 2]


# Roles and variables.


@pytest.fixture
def guarded(transactional_db):
    """The table of `public` under row level security: by a variable, and by the role."""
    connection.close()
    made = f"tenant_{uuid4().hex[:8]}"
    role, other = f"{made}_a", f"{made}_b"
    for name in (role, other):
        execute(f"CREATE ROLE {name}")
        execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}")
        execute(f"GRANT ALL ON SCHEMA public TO {name}")
    execute("ALTER TABLE idempotency_record ENABLE ROW LEVEL SECURITY")
    execute("ALTER TABLE idempotency_record ADD COLUMN tenant text")
    yield role, other
    connection.close()
    execute("DROP POLICY IF EXISTS own ON idempotency_record")
    execute("ALTER TABLE idempotency_record DISABLE ROW LEVEL SECURITY")
    execute("ALTER TABLE idempotency_record DROP COLUMN tenant")
    for name in (role, other):
        execute(f"DROP OWNED BY {name}")
        execute(f"DROP ROLE {name}")


def by_role():
    execute("ALTER TABLE idempotency_record ALTER tenant SET DEFAULT current_user")
    execute("CREATE POLICY own ON idempotency_record USING (tenant = current_user)")


def by_variable():
    value = "nullif(current_setting('app.tenant', true), '')"
    execute(f"ALTER TABLE idempotency_record ALTER tenant SET DEFAULT {value}")
    execute(f"CREATE POLICY own ON idempotency_record USING (tenant = {value})")


@pytest.mark.parametrize("by", ["role", "variable"])
@MODES
def test_R98_under_row_level_security(guarded, sessions, by, mode):
    role, other = guarded
    (by_role if by == "role" else by_variable)()
    names = () if by == "role" else ["app.tenant"]
    store = DatabaseStore(session_variables=names)

    def be(name):
        if by == "role":
            execute(f"SET ROLE {name}")
        else:
            execute(f"SET ROLE {role}")
            execute(f"SET app.tenant = '{name}'")

    def claim_as(name, key):
        be(name)
        return won(store.claim(claim_request(key, transaction="separate", lease=MOMENT)))

    leases = [
        session(claim_as, name, f"key of {name}")
        for session, name in zip(sessions, guarded, strict=True)
    ]
    # Neither of this thread nor of a new session: on both the rows are those of the claims.
    assert store.renew(leases, timedelta(hours=1)) == set(leases)
    for lease in leases:
        with store.fresh_connection(), store.at(lease.place):
            assert [*store.peek([lease.record_id])] == [lease.record_id]
            assert store.get(lease.record_id).state is State.IN_PROGRESS
    be(other)  # who sees no row of the role; a superuser, as above, would see all
    for lease in leases:
        with store.at(lease.place):
            assert store.get(lease.record_id) is not None
    store.fail(leases[0], "builtins.OSError")
    assert execute("SELECT current_setting('role')") == (other if by == "role" else role)
    connection.close()
    assert sorted(rows("public", "state")) == [("FAILED",), ("IN_PROGRESS",)]

    def work(lease):
        be(other)  # and leaves it so
        return "done"

    be(role)
    assert Engine(store).run(operation("mine", transaction=mode), work).stored
    connection.close()
    told = "SELECT tenant FROM idempotency_record WHERE state = 'COMPLETED'"
    assert execute(told) == role


def end(store, lease, state):
    if state == "COMPLETED":
        store.complete(lease, packed("done"), retention=claims.RETENTION)
    elif state == "FAILED":
        store.fail(lease, "boom")
    elif state == "IN_PROGRESS":
        store.note(lease, b"noted", duration=timedelta(hours=1), held=False)
    else:
        store.release(lease)


@pytest.mark.parametrize("ends", ["COMPLETED", "FAILED", "RELEASED", "IN_PROGRESS", "single"])
def test_R98_end_is_written_in_the_role_of_its_claim_where_another_sees_the_row(
    guarded, store, ends
):
    """Which may not write it: that would be an error."""
    role, other = guarded
    by_role()
    execute("DROP POLICY own ON idempotency_record")
    execute(
        "CREATE POLICY own ON idempotency_record USING (true) WITH CHECK (tenant = current_user)"
    )
    execute(f"SET ROLE {role}")
    lease = won(store.claim(claim_request(transaction="separate")))
    if ends == "single":
        store.fail(lease, "boom")
        work = operation(transaction="single")
        assert Engine(store).run(work, lambda lease: execute(f"SET ROLE {other}")).stored
        ends = "COMPLETED"
    else:
        execute(f"SET ROLE {other}")
        end(store, lease, ends)
    connection.close()
    noted = "noted" if ends == "IN_PROGRESS" else None
    assert rows("public", "state, tenant, encode(steps, 'escape')") == [(ends, role, noted)]


def test_R98_with_autocommit_off_the_role_of_the_work_is_left_as_it_was(guarded, store):
    role, other = guarded
    by_role()
    execute(f"SET ROLE {role}")
    lease = won(store.claim(claim_request(transaction="joined")))
    transaction.set_autocommit(False)
    execute(f"SET ROLE {other}")
    store.complete(lease, packed("done"), retention=claims.RETENTION)
    assert execute("SELECT current_user") == other
    transaction.commit()
    transaction.set_autocommit(True)
    connection.close()
    assert execute("SELECT state FROM idempotency_record") == "COMPLETED"


def test_R98_inside_a_callers_transaction_its_role_is_left_as_it_was(guarded, store):
    role, other = guarded
    by_role()
    with transaction.atomic():
        execute(f"SET LOCAL ROLE {role}")
        done = Engine(store).run(
            operation(transaction="single"), lambda lease: execute(f"SET LOCAL ROLE {other}")
        )
        assert done.stored
        assert execute("SELECT current_user") == other
    assert execute("SELECT current_setting('role')") == "none"
    assert execute("SELECT tenant FROM idempotency_record") == role


@pytest.mark.parametrize(
    "names", ["app.tenant", "tenant", ["app.tenant'"], [""], 5, ["app tenant"], [5]]
)
def test_R98_names_of_variables_are_checked(names):
    with pytest.raises((TypeError, ValueError), match="session_variables"):
        DatabaseStore(session_variables=names)


def test_W017_a_variable_that_the_tables_policies_read_is_named(guarded, settings):
    by_variable()
    execute("CREATE POLICY two ON idempotency_record USING (scope = current_setting('app.two'))")
    read = "current_setting('app.three')"
    execute(f"CREATE TABLE another (id text DEFAULT {read})")
    execute(f"CREATE POLICY three ON another USING (id = {read})")

    def found(*names):
        options = {"OPTIONS": {"session_variables": names}}
        settings.IDEMPOTENCY = {"default": options}
        told = checks.run_checks(tags=["database"], databases=["default"])
        return [it.msg for it in told if it.id == "django_idempotency.W017"]

    try:
        assert "app.tenant, app.two" in found()[0]
        assert "read app.two," in found("app.tenant")[0]
        assert found("app.tenant", "app.two") == []
    finally:
        execute("DROP POLICY two ON idempotency_record")
        execute("DROP TABLE another")
