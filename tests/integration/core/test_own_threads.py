"""Coroutines that commit with their record: each has a thread and a connection of its own."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest import mock

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from celery import Celery
from celery.app.trace import build_tracer
from django.core.handlers.asgi import ASGIHandler
from django.core.signals import request_finished, request_started
from django.db import DatabaseError, close_old_connections, connection, connections, transaction
from django.http import HttpResponse
from django.test import AsyncClient, Client, TestCase
from django.urls import path
from django.utils.decorators import async_only_middleware

import django_idempotency as idempotency
from django_idempotency import StoreError, TransactionOpen
from django_idempotency.contrib.celery import idempotent_task
from django_idempotency.engine.waiting import poller
from django_idempotency.http import idempotent
from django_idempotency.models import IdempotencyRecord
from django_idempotency.stores.database import carried
from tests.app.models import Effect
from tests.services.processes import wait_until
from tests.unit.core.conftest import names, never, run, run_in_loop

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("postgres18", "postgres16")]

each_mode = pytest.mark.parametrize("mode", ["joined", "single"])
#: How the names of their threads begin.
OWN = "django-idempotency_"
ANYONE = "django_idempotency.http.scopes.anyone"


async def arun(work, key="k", **arguments):
    return await idempotency.arun(work, key=key, scope="s", **arguments)


async def effect(lease, name="x"):
    return (await Effect.objects.acreate(name=name)).pk


async def thread(lease=None):
    return await sync_to_async(threading.get_native_id)()


def session():
    """The server's process behind this thread's connection."""
    return execute("SELECT pg_backend_pid()")


def execute(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0] if cursor.description else None


def ended(*servers):
    """Wait for the end of sessions: the server notices it in its own time."""
    there = f"SELECT count(*) FROM pg_stat_activity WHERE pid IN ({', '.join(map(str, servers))})"
    wait_until(lambda: not execute(there), seconds=60, what="the end of their sessions")


def states():
    return sorted(IdempotencyRecord.objects.values_list("state", flat=True))


class Turns:
    """Work that fails after another coroutine has written its row, and that coroutine."""

    def __init__(self):
        self.working, self.written = asyncio.Event(), asyncio.Event()

    async def fail(self, lease=None):
        await effect(lease, "rolled back")
        self.working.set()
        await self.written.wait()
        raise ValueError("boom")

    async def write(self):
        await self.working.wait()
        await effect(None, "sibling")
        self.written.set()


async def awaited(main):
    return await main()


def in_a_task(main):
    """Await it as a Celery task does, in the thread of its worker."""
    app = Celery(__name__, set_as_current=False)

    @app.task
    def task():
        return async_to_sync(awaited)(main)

    return task.apply(throw=True).get()


def in_a_request(main):
    async def request():
        async with ThreadSensitiveContext():
            try:
                return await main()
            finally:
                await sync_to_async(connections.close_all)()

    return asyncio.run(request())


def bounded(calling):
    """A turn that never comes fails the test."""
    return lambda main: calling(lambda: asyncio.wait_for(main(), 60))


#: Who calls: one thread, and its connection, is that of all coroutines there.
CALLERS = {
    "async_to_sync": bounded(lambda main: async_to_sync(awaited)(main)),
    "task": bounded(in_a_task),
    "loop": run_in_loop,
    "request": bounded(in_a_request),
}
each_caller = pytest.mark.parametrize("calling", CALLERS.values(), ids=CALLERS)


@each_caller
@each_mode
def test_I5_row_of_another_coroutine_stays_when_the_attempt_rolls_back(calling, mode):
    async def main():
        turns = Turns()
        attempt = arun(turns.fail, transaction=mode)
        return await asyncio.gather(attempt, turns.write(), return_exceptions=True)

    error, _ = calling(main)

    assert isinstance(error, ValueError)
    assert names() == ["sibling"]


@each_caller
@each_mode
def test_I5_two_attempts_at_once_both_commit_and_a_third_rolls_back(calling, mode):
    """Each is at work while the others are: on one connection the last would roll all back."""

    async def main():
        at_work = [asyncio.Event() for _ in range(3)]

        async def work(number):
            await effect(None, f"row {number}")
            at_work[number].set()
            await asyncio.gather(*(event.wait() for event in at_work))
            if number == 2:
                raise ValueError("boom")
            return await sync_to_async(session)()

        attempts = [arun(lambda _, n=n: work(n), f"k{n}", transaction=mode) for n in range(3)]
        return await asyncio.gather(*attempts, return_exceptions=True)

    first, second, failed = calling(main)

    assert isinstance(failed, ValueError)
    assert len({first.result, second.result}) == 2
    assert names() == ["row 0", "row 1"]


@each_mode
def test_I5_a_call_on_the_callers_thread_goes_on_beside_an_attempt(mode):
    async def main():
        working, done = asyncio.Event(), asyncio.Event()

        async def first(lease):
            await effect(lease, "first")
            working.set()
            await done.wait()

        async def second():
            await working.wait()
            await sync_to_async(run)(lambda lease: names(), "second", transaction=mode)
            done.set()

        await asyncio.gather(arun(first, "first", transaction=mode), second())

    CALLERS["async_to_sync"](main)

    assert states() == ["COMPLETED"] * 2


@each_mode
def test_the_callers_session_stays_and_the_attempts_own_are_closed(mode):
    """A cursor, a temporary table, a setting: whatever the caller has in its session."""
    execute("CREATE TEMPORARY TABLE callers (id int)")
    execute("SET app.role = 'clerk'")
    before, server = connection.connection, session()

    async def main():
        with pytest.raises(ValueError, match="boom"):
            await arun(boom, "failed", transaction=mode)
        return [(await arun(own, transaction=mode)).result for _ in range(2)]

    async def boom(lease):
        raise ValueError("boom")

    async def own(lease):
        return await sync_to_async(session)()

    attempts = async_to_sync(main)()

    assert connection.connection is before
    assert not before.closed
    assert execute("SELECT count(*) FROM callers") == 0
    assert execute("SELECT current_setting('app.role')") == "clerk"
    assert server not in attempts
    ended(*attempts)


def test_R51_duplicate_that_waits_keeps_its_callers_session_and_has_no_thread(monkeypatch):
    """It has one again when it claims."""
    server, before = session(), connection.connection
    waits, await_ = asyncio.Event(), poller.await_

    async def noting(*arguments, **keywords):
        waits.set()
        return await await_(*arguments, **keywords)

    async def main():
        working = asyncio.Event()

        async def work(lease):
            working.set()
            await waits.wait()
            mine = await sync_to_async(threading.current_thread)()
            others = {it for it in threading.enumerate() if it.name.startswith(OWN)} - {mine}
            for other in others:  # the duplicate's, which was told to end before it waits
                await asyncio.to_thread(other.join, 20)
            return [other.is_alive() for other in others if other.is_alive()]

        async def duplicate():
            await working.wait()
            return await arun(never, transaction="joined", wait=60)

        return await asyncio.gather(arun(work, transaction="joined"), duplicate())

    monkeypatch.setattr(poller, "await_", noting)
    first, duplicate = CALLERS["async_to_sync"](main)

    assert first.result == []
    assert duplicate.result == first.result
    assert (session(), connection.connection) == (server, before)


# Through synchronous code, and attempts within attempts.


def through_a_function(key, **arguments):
    """As a signal's receiver may call it."""
    return sync_to_async(lambda: async_to_sync(arun)(thread, key, **arguments))()


@each_caller
def test_attempts_within_attempts_and_through_synchronous_code(calling):
    """An inner one joins the transaction around it, on its thread."""

    async def outer(lease):
        inner = await arun(thread, "inner")
        below = await through_a_function("below")
        await effect(lease)
        return [await thread(), inner.result, below.result]

    async def main():
        own = (await arun(outer, transaction="joined")).result
        below = await through_a_function("b", transaction="joined")
        return own, below.result, await thread()

    own, below, callers = calling(main)

    assert len({*own}) == 1
    assert len({own[0], below, callers}) == 3
    assert names() == ["x"]
    assert states() == ["COMPLETED"] * 4


@each_caller
def test_separate_attempt_stays_on_its_callers_thread_and_has_joined_ones_beside_it(calling):
    async def outer(lease):
        inner = [arun(thread, key, transaction="joined") for key in ("a", "b")]
        return [await thread(), *[it.result for it in await asyncio.gather(*inner)]]

    async def main():
        return (await arun(outer)).result, await thread()

    (outer_thread, *inner), callers = calling(main)

    assert outer_thread == callers
    assert len({callers, *inner}) == 3


def test_R63_task_that_outlives_its_attempt_is_told_so():
    """It finds no other thread: its next query would run outside of the transaction."""

    async def main():
        ended, tasks = asyncio.Event(), []

        async def outliving():
            await ended.wait()
            await effect(None)

        async def work(lease):
            tasks.append(asyncio.create_task(outliving()))

        await arun(work, transaction="joined")
        ended.set()
        with pytest.raises(RuntimeError, match=r"must finish before|after shutdown"):
            await tasks[0]

    run_in_loop(main)
    assert names() == []


@each_mode
def test_R57_work_that_closes_the_connection_of_its_transaction_is_rolled_back(mode):
    """As `database_sync_to_async` of Channels does: Django closes it, in a transaction or not."""

    async def closing(lease):
        await effect(lease)
        await sync_to_async(close_old_connections)()
        return "done"

    # The server may still be ending the last session, which holds the key.
    waiting = partial(arun, transaction=mode, wait=60)
    for _ in range(2):
        with pytest.raises(StoreError):
            run_in_loop(lambda: waiting(closing))
        assert names() == []
    assert run_in_loop(lambda: waiting(effect)).replayed is False
    assert names() == ["x"]


class Nested:
    """Work that does something beside an attempt within it, which has written its row."""

    def __init__(self, does, *, fails=True):
        self.does, self.fails = does, fails
        self.inside, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, lease):
        await effect(lease, "outer")
        self.task = asyncio.create_task(arun(self.child, "child"))
        await self.inside.wait()
        return await self.does(self)

    async def child(self, lease):
        await effect(lease, "child")
        self.inside.set()
        await self.go_on.wait()
        await sync_to_async(names)()
        if self.fails:
            raise ValueError("boom")

    async def end(self):
        self.go_on.set()
        await asyncio.wait([self.task])


async def write_beside(nested):
    """As in `gather(arun(child), acreate())`, whose first error is the work's."""
    try:
        await effect(None, "sibling")
    finally:
        await nested.end()


async def write_and_raise(nested):
    await effect(None, "sibling")


async def return_before(nested):
    return "done"


async def raise_before(nested):
    raise TransactionOpen


@each_caller
@each_mode
@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("does", [write_beside, write_and_raise, return_before, raise_before])
def test_I5_nothing_comes_between_the_statements_of_an_attempt_within(calling, mode, does, fails):
    """It would go with the attempt's savepoint, and work that leaves it open with its own."""

    async def main():
        nested = Nested(does, fails=fails)
        with pytest.raises(TransactionOpen):
            await arun(nested, transaction=mode)
        await nested.end()
        nested.task.cancelled() or nested.task.exception()

    calling(main)

    assert names() == []
    assert states() in ([], ["FAILED"])
    assert CALLERS["loop"](lambda: arun(effect, transaction=mode)).replayed is False


@pytest.mark.parametrize("does", [write_beside, write_and_raise, return_before, raise_before])
@pytest.mark.parametrize("fails", [True, False])
def test_I5_within_the_callers_atomic_what_is_the_callers_stays(does, fails):
    async def main():
        nested = Nested(does, fails=fails)
        with pytest.raises(TransactionOpen):
            await arun(nested)
        await nested.end()
        nested.task.cancelled() or nested.task.exception()

    with transaction.atomic():
        Effect.objects.create(name="caller")
        async_to_sync(main)()
        connection.rollback_exc = None  # Django keeps the error of a refused write, and its frames
        assert connection.execute_wrappers == []
        assert len(connection.atomic_blocks) == 1
        Effect.objects.create(name="caller, too")

    assert names() == ["caller", "caller, too"]
    assert connection.execute_wrappers == []


@each_mode
def test_I5_work_goes_on_after_the_attempt_within_and_that_has_coroutines_of_its_own(mode):
    async def refused(nested):
        with pytest.raises(TransactionOpen):
            await sync_to_async(names)()  # Django dooms the savepoint for a write that fails
        await nested.end()
        await effect(None, "after")
        await arun(both, "both")
        return await sync_to_async(lambda: len(connection.execute_wrappers))()

    async def both(lease):
        await asyncio.gather(*(effect(None, "of its own") for _ in range(2)))

    nested = Nested(refused, fails=False)
    assert run_in_loop(lambda: arun(nested, transaction=mode)).result == 0
    assert names() == ["after", "child", "of its own", "of its own", "outer"]


# Inside a transaction of the caller's.


@pytest.mark.parametrize("mode", [None, "single"])
def test_within_the_callers_atomic_it_is_single_and_on_the_callers_thread(mode):
    async def work(lease):
        return await effect(lease) and await thread()

    with transaction.atomic():
        outcome = async_to_sync(arun)(work, transaction=mode)
        assert outcome.result == threading.get_native_id()
        assert (names(), states()) == (["x"], ["COMPLETED"])
        transaction.set_rollback(True)

    assert (names(), states()) == ([], [])


def test_with_autocommit_off_it_is_part_of_what_the_caller_commits():
    transaction.set_autocommit(False)
    try:
        assert async_to_sync(arun)(thread).result == threading.get_native_id()
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)
    assert states() == []


def test_task_that_is_joined_has_the_attempt_of_its_coroutine_within_its_transaction():
    app = Celery(__name__, set_as_current=False)

    def charge(order):
        outcome = async_to_sync(arun)(effect)
        raise ValueError(outcome.stored)

    task = app.task(idempotent_task(key="order")(charge), name="charge")
    with pytest.raises(ValueError, match="True"):
        task.apply(["o-1"], throw=True)

    assert (names(), states()) == ([], ["FAILED"])


# Requests.


async def pay(request):
    turns = request.turns
    if turns is not None:
        await turns.fail()
    await effect(None, "paid")
    return HttpResponse(str(await thread()), status=201)


urlpatterns = [
    path(f"{mode}/", idempotent(scope=ANYONE, transaction=mode)(pay))
    for mode in ("joined", "single")
]


@async_only_middleware
def writing(get_response):
    """Write a row while the view is at work, as a task that counts requests does."""

    async def middleware(request):
        request.turns = turns = Turns() if "fails" in request.headers else None
        if turns is None:
            return await get_response(request)
        task = asyncio.create_task(turns.write())
        try:
            return await get_response(request)
        finally:
            await task

    return middleware


@pytest.fixture
def site(settings):
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = [f"{__name__}.writing"]


async def asgi(url, **headers):
    """Send a request to Django's own ASGI application, and return the status of its answer."""
    messages, sent = [{"type": "http.request", "body": b"{}"}], []

    async def receive():
        if messages:
            return messages.pop()
        return await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    fields = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": url, "headers": fields}
    await ASGIHandler()({**scope, "query_string": b"", "http_version": "1.1"}, receive, send)
    return sent[0]["status"]


@pytest.mark.parametrize("keyed", [True, False], ids=["key", "no key"])
@each_mode
def test_R57_R90_row_of_a_middlewares_task_stays_when_the_view_rolls_back(site, mode, keyed):
    headers = {"idempotency-key": "k"} if keyed else {}

    assert run_in_loop(lambda: asgi(f"/{mode}/", fails="yes", **headers)) == 500

    assert names() == ["sibling"]
    assert states() == (["FAILED"] if keyed else [])


@each_mode
def test_async_view_under_WSGI_leaves_its_threads_session_as_it_was(site, mode):
    execute("CREATE TEMPORARY TABLE callers (id int)")
    before = connection.connection

    sent = [Client().post(f"/{mode}/", headers={"Idempotency-Key": "k"}) for _ in range(2)]

    assert ["Idempotency-Replayed" in it for it in sent] == [False, True]

    assert connection.connection is before
    assert execute("SELECT count(*) FROM callers") == 0
    assert names() == ["paid"]


@pytest.mark.usefixtures("site")
class TestInATestCase(TestCase):
    """R84: the thread stays, so the work is part of the test's transaction."""

    async def test_R84_async_view_sees_the_tests_rows_and_leaves_its_connection_open(self):
        await effect(None, "before")
        own, first = await thread(), connection.connection
        for mode in ("joined", "single"):
            for replayed in (False, True):
                sent = await AsyncClient().post(f"/{mode}/", headers={"Idempotency-Key": mode})
                assert (sent.status_code, sent.content.decode()) == (201, str(own))
                assert ("Idempotency-Replayed" in sent) is replayed
        assert await sync_to_async(names)() == ["before", "paid", "paid"]
        assert connection.connection is first

    def test_R84_arun_below_async_to_sync(self):
        outcome = async_to_sync(arun)(thread, transaction="joined")
        assert outcome.result == threading.get_native_id()
        assert not connection.closed_in_transaction


@each_mode
@pytest.mark.parametrize("caller", ["async_to_sync", "request"])
def test_R63_cancelled_attempt_rolls_back_and_its_connection_is_closed(caller, mode):
    servers = []

    async def main():
        working = asyncio.Event()

        async def work(lease):
            servers.append(await sync_to_async(session)())
            await effect(lease)
            working.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(arun(work, transaction=mode))
        await working.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    CALLERS[caller](main)

    [server] = servers
    ended(server)
    assert (names(), states()) == ([], ["FAILED"])


@async_only_middleware
def connected(get_response):
    """Use the database before the view does, as sessions do."""

    async def middleware(request):
        request.turns = None
        await sync_to_async(execute)("SELECT 1")
        return await get_response(request)

    return middleware


@pytest.fixture
def schemas():
    """Two schemas with tables of their own."""
    for name in ("one", "two"):
        execute(f"CREATE SCHEMA {name}")
        for table in ("idempotency_record", "app_effect"):
            execute(f"CREATE TABLE {name}.{table} (LIKE public.{table} INCLUDING ALL)")
    yield
    execute("DROP SCHEMA one, two CASCADE")


@pytest.mark.parametrize("calling", [in_a_task, in_a_request, run_in_loop])
@pytest.mark.parametrize("mode", ["joined", "single"])
def test_R98_I10_own_connection_is_in_the_schema_and_the_role_of_its_callers(
    schemas, calling, mode
):
    async def of(schema):
        await sync_to_async(execute)(f"SET search_path = {schema}, public")
        return await arun(effect, transaction=mode)

    async def main():
        try:
            return [await of("one"), await of("two"), await of("one")]
        finally:
            await sync_to_async(connections.close_all)()

    assert [outcome.replayed for outcome in calling(main)] == [False, False, True]
    for schema, rows in (("one", 1), ("two", 1), ("public", 0)):
        for table in ("idempotency_record", "app_effect"):
            assert execute(f"SELECT count(*) FROM {schema}.{table}") == rows


@async_only_middleware
def of_schema_one(get_response):
    """Choose a schema, and write a row beside the view and one after it."""

    async def middleware(request):
        request.turns = turns = Turns()
        await sync_to_async(execute)("SET search_path = one, public")
        task = asyncio.create_task(turns.write())
        try:
            return await get_response(request)
        finally:
            await task
            await effect(None, "after")

    return middleware


@pytest.fixture
def pool(schemas):
    """A pool with room for two connections."""
    configured = connections.settings["default"]
    pooled = {**configured["OPTIONS"], "pool": {"min_size": 0, "max_size": 2}}
    connection.close()
    with mock.patch.dict(configured, OPTIONS=pooled):
        yield
        connection.close()
        connection.close_pool()


def in_the_pool():
    """The schema of each session that the pool has to give."""
    found = []
    for driver in [*connection.pool._pool]:
        found.append(driver.execute("SELECT current_schema()").fetchone()[0])
        driver.rollback()
    return found


@pytest.mark.parametrize("hook", [str, partial(transaction.set_autocommit, False)])
@each_mode
def test_R98_session_of_an_attempt_on_its_own_thread_does_not_go_to_its_pool(pool, mode, hook):
    """Whoever takes that connection next would work as another tenant."""

    async def main():
        await sync_to_async(execute)("SET search_path = one, public")
        await arun(work, transaction=mode)
        await sync_to_async(leave)()

    async def work(lease):
        await effect(lease)
        await sync_to_async(transaction.on_commit)(hook)

    def leave():
        execute("RESET search_path")
        connection.close()

    run_in_loop(main)

    assert execute("SELECT array_agg(name) FROM one.app_effect") == ["x"]
    connection.close()
    assert {*in_the_pool()} == {"public"}


@each_mode
def test_R98_session_that_cannot_be_reset_goes_to_no_pool(pool, monkeypatch, mode):
    async def main():
        await arun(work, transaction=mode)

    async def work(lease):
        await sync_to_async(execute)("SET search_path = one, public")
        monkeypatch.setattr(carried, "_RESET", "SELECT nonsense %s")

    connection.close()
    run_in_loop(main)

    assert "one" not in in_the_pool()


@each_mode
def test_R98_session_that_work_has_changed_on_its_own_thread_does_not_go_to_its_pool(pool, mode):
    """Middleware that sets it back does so on its request's connection."""

    async def main():
        await arun(work, transaction=mode)

    async def work(lease):
        await sync_to_async(execute)("SET search_path = one, public")

    run_in_loop(main)

    assert {*in_the_pool()} == {"public"}


def test_R98_session_of_one_who_waits_does_not_go_to_its_pool(pool):
    def duplicate():
        execute("SET search_path = one, public")
        try:
            run(never, wait=60)
            # Else the next message of a consumer's thread would have it.
            assert connection.connection is not None
            return execute("SELECT current_schema()")
        finally:
            execute("RESET search_path")
            connection.close()

    def hold(lease):
        waiting = threads.submit(duplicate)
        wait_until(in_the_pool, seconds=60, what="the connection of the one who waits")
        found.extend([waiting, in_the_pool()])
        return "done"

    found = []
    execute("SET search_path = one, public")
    with ThreadPoolExecutor() as threads:
        run(hold)

    assert found[1] == ["public"]
    assert found[0].result() == "one"
    execute("RESET search_path")


@pytest.mark.parametrize("keyed", [True, False], ids=["key", "no key"])
@each_mode
def test_R98_request_whose_pooled_connection_was_given_back_stays_in_its_schema(
    site, settings, pool, mode, keyed
):
    """What is beside the view, or comes after it, gets another session of the pool."""
    settings.MIDDLEWARE = [f"{__name__}.of_schema_one"]
    headers = {"idempotency-key": "k"} if keyed else {}

    assert run_in_loop(lambda: asgi(f"/{mode}/", **headers)) == 500

    assert execute("SELECT array_agg(name ORDER BY id) FROM one.app_effect") == ["sibling", "after"]
    assert execute("SELECT count(*) FROM public.app_effect") == 0


@async_only_middleware
def in_schema_one(get_response):
    """Choose a schema, and choose none at the end, as a middleware of tenants does."""

    async def middleware(request):
        request.turns = None
        await sync_to_async(execute)("SET search_path = one, public")
        try:
            return await get_response(request)
        finally:
            await sync_to_async(execute)("RESET search_path")

    return middleware


@pytest.mark.parametrize("keyed", [True, False], ids=["key", "no key"])
@each_mode
def test_R98_work_of_a_request_whose_pooled_connection_was_given_back_is_in_its_schema(
    site, settings, pool, mode, keyed
):
    settings.MIDDLEWARE = [f"{__name__}.in_schema_one"]
    headers = {"idempotency-key": "k"} if keyed else {}

    assert run_in_loop(lambda: asgi(f"/{mode}/", **headers)) == 201

    assert execute("SELECT array_agg(name) FROM one.app_effect") == ["paid"]
    connection.close()
    assert {*in_the_pool()} == {"public"}


@each_mode
def test_pooled_session_of_a_caller_that_is_no_request_stays(pool, mode):
    """Nobody but the caller can say what it has in it."""
    server, before = session(), connection.connection

    async def own(lease):
        return await sync_to_async(session)()

    assert async_to_sync(arun)(own, transaction=mode).result != server

    assert connection.connection is before


def carry():
    """Let the connection go as an attempt that waits does, with a session of its own."""
    execute("SET search_path = one, public")
    carried.carry_later(carried.let_go([connections["default"]], "default", ()))


def test_R98_session_that_is_carried_later_is_that_of_the_request_alone(schemas):
    carry()
    assert execute("SELECT current_schema()") == "one"
    for end in (request_finished, request_started):
        carry()
        end.send(None)
        assert execute("SELECT current_schema()") == "public"


@pytest.mark.parametrize(("eager", "schema"), [(False, "public"), (True, "one")])
def test_R98_session_that_is_carried_later_is_that_of_the_task_alone(schemas, eager, schema):
    app = Celery(__name__, set_as_current=False)

    @app.task
    def task():
        carry()

    if eager:
        task.apply()
    else:
        build_tracer(task.name, task, app=app)("id", [], {}, {})

    assert execute("SELECT current_schema()") == schema
    connection.close()


@pytest.mark.parametrize("wait_fails", [False, True])
def test_R98_session_that_could_not_be_opened_again_is_not_that_of_the_next_message(
    pool, monkeypatch, wait_fails
):
    """A thread without requests: nothing tells where one message ends and another begins."""

    def no_answer(*arguments):
        monkeypatch.setattr(carried.PostgreSQL, "RESTORE", "SELECT nonsense %(names)s, %(values)s")
        if wait_fails:
            raise TimeoutError

    monkeypatch.setattr(poller, "wait", no_answer)

    def wait_for_another():
        execute("SET search_path = one, public")
        with pytest.raises(TimeoutError if wait_fails else StoreError):
            run(never, wait=60)
        try:
            return execute("SELECT current_schema()")
        finally:
            connection.close()

    def hold(lease):
        found.append(threads.submit(wait_for_another).result())

    found = []
    execute("SET search_path = one, public")
    with ThreadPoolExecutor() as threads:
        run(hold)

    assert found == ["public"]
    execute("RESET search_path")


@each_mode
def test_R98_session_in_a_transaction_by_hand_does_not_go_to_its_pool(pool, mode):
    """Django does not know of it; the pool ends it, and takes the reset back."""

    async def main():
        await sync_to_async(execute)("SET search_path = one, public")
        await arun(work, transaction=mode)
        await sync_to_async(leave)()

    async def work(lease):
        await sync_to_async(transaction.on_commit)(partial(execute, "BEGIN"))

    def leave():
        execute("RESET search_path")
        connection.close()

    run_in_loop(main)

    assert "one" not in in_the_pool()


def test_R98_empty_search_path_does_not_go_to_its_pool(pool):
    execute("SET search_path = ''")

    [session] = carried.let_go([connections["default"]], "default", ())

    assert session.settings == {"search_path": '""'}
    assert in_the_pool() == ["public"]


@pytest.mark.parametrize(("role", "stays"), [("pg_monitor", True), ("pg_read_all_data", False)])
def test_R98_role_that_django_gives_each_session_stays(pool, role, stays):
    """A reset would take it away; a session that has another role is ended."""
    execute(f"SET ROLE {role}")
    own, wrapper = session(), connections["default"]

    with mock.patch.dict(wrapper.settings_dict["OPTIONS"], assume_role="pg_monitor"):
        carried_on = carried.let_go([wrapper], "default", ())

    assert [it.settings for it in carried_on] == ([] if stays else [{"role": role}])
    assert (session() == own) is stays
    execute("RESET ROLE")
    connection.close()


def test_R98_connection_whose_session_cannot_be_carried_stays_closed():
    carried.carry_later([carried.Session("default", None, {"role": "nobody there"})])

    for _ in range(2):
        with pytest.raises(DatabaseError, match="nobody there"):
            execute("SELECT 1")
        assert connection.connection is None
    request_finished.send(None)


def test_R98_session_that_is_like_a_new_one_is_not_opened_again_for_its_alias():
    """Each would cost a connection, on aliases too that the work does not use."""
    execute("SELECT 1")

    assert carried.sessions_here("default", ()) == []

    execute("SET app.tenant = 'acme'")
    [session] = carried.sessions_here("default", ("app.tenant",))
    assert session == ("default", None, {"app.tenant": "acme"})
    assert carried.sessions_here("other", ("app.tenant",)) == []
    connection.close()


@pytest.mark.parametrize("keyed", [True, False])
@each_mode
def test_R61_session_that_cannot_be_carried_is_an_error_of_the_store(
    site, settings, monkeypatch, mode, keyed
):
    settings.MIDDLEWARE = [f"{__name__}.connected"]
    monkeypatch.setattr(carried, "_READ", "SELECT nonsense %s")
    headers = {"idempotency-key": "k"} if keyed else {}

    assert run_in_loop(lambda: asgi(f"/{mode}/", **headers)) == 503
    assert names() == []
