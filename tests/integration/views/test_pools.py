"""R51, R57, R88: requests that meet; a waiter holds no transaction and no pooled connection."""

from __future__ import annotations

import asyncio
import threading
from contextvars import Context
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from django.db import connections

from django_idempotency import InProgress, arun, attempt
from django_idempotency.engine.waiting import poller
from tests.app.models import Effect
from tests.integration.database.sessions import execute
from tests.services.processes import wait_until
from tests.unit.core.conftest import never
from tests.unit.http.api import replayed
from tests.unit.views.conftest import api_for, send, sending, together
from tests.unit.views.work import PAUSED

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.leg("postgres18", "postgres16")]

LONG = 60


@pytest.fixture
def pool(transactional_db, monkeypatch):
    """``pool(size)``: the default database behind a pool of so many connections."""
    settings = connections.settings["default"]
    default: Any = connections["default"]
    default.close()

    def of(size):
        pooled = {"min_size": 1, "max_size": size}
        monkeypatch.setitem(settings, "OPTIONS", {**settings["OPTIONS"], "pool": pooled})
        return default.pool

    yield of
    default.close()
    default.close_pool()


def connections_in_use(pool):
    figures = pool.get_stats()
    return figures["pool_size"] - figures["pool_available"]


@pytest.mark.parametrize(
    ("kind", "atomic", "transaction"),
    [("function", False, "joined"), ("drf", True, "separate"), ("above-api-view", False, "single")],
)
def test_R51_waiters_hold_no_pooled_connection(
    kind, atomic, transaction, policy, monkeypatch, pool, gate, looks, runs
):
    """Five waiters and an owner share two connections, and leave one of them to others."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", atomic)
    policy(TRANSACTION=transaction, WAIT=LONG)
    two = pool(2)
    with together(sending(kind)) as first:
        assert gate.reached.wait(LONG)
        with together(*[sending(kind)] * 5) as others:
            looks.wait_for(5)
            wait_until(lambda: connections_in_use(two) == 1, seconds=LONG, what="idle waiters")
            with together(sending(kind, {"name": "else"}, key="key-2")) as another:
                pass
            assert another[0].status_code == 201
            gate.open.set()

    assert [replayed(answer) for answer in (*first, *others)] == [False] + [True] * 5
    assert len(runs) == 2


def test_R51_waiters_on_another_store_hold_no_pooled_connection(settings, policy, pool, gate):
    """They have used the database, to see who asks, and the store is none of it."""
    settings.IDEMPOTENCY = {
        "default": {"BACKEND": "django_idempotency.stores.memory.MemoryStore", "WAIT": LONG}
    }
    two = pool(2)
    with together(sending("function")) as first:
        assert gate.reached.wait(LONG)
        with together(*[sending("function")] * 3) as others:
            wait_until(lambda: two.get_stats()["requests_num"] >= 4, seconds=LONG, what="waiters")
            wait_until(lambda: connections_in_use(two) <= 1, seconds=LONG, what="idle waiters")
            gate.open.set()

    assert [replayed(answer) for answer in (*first, *others)] == [False, True, True, True]


@pytest.mark.parametrize("below", [False, True], ids=["loop", "async_to_sync"])
def test_R51_coroutine_that_waits_leaves_the_connection_to_others_of_its_thread(
    settings, pool, in_loop, below
):
    """One of them may be reading, and the pool would give its session to a stranger."""
    settings.IDEMPOTENCY = {"default": {"WAIT": LONG}}
    pool(2)

    async def main():
        begun, done = asyncio.Event(), asyncio.Event()

        async def work(lease):
            begun.set()
            await done.wait()

        def call():
            return asyncio.create_task(arun(work, key="k", scope="s", operation="o"))

        session = sync_to_async(lambda: connections["default"].connection)
        first = call()
        await begun.wait()
        reading = await session()
        second = call()
        await asyncio.to_thread(
            wait_until, lambda: any(poller._waiters.values()), seconds=LONG, what="the waiter"
        )
        assert await session() is reading is not None
        done.set()
        assert [outcome.replayed for outcome in await asyncio.gather(first, second)] == [
            False,
            True,
        ]

    async_to_sync(main)() if below else in_loop(main)


@pytest.mark.parametrize("stack", ["ASGI", "WSGI", "call within ASGI"])
def test_R51_coroutine_that_waits_gives_back_the_pooled_connection_of_its_request(
    policy, pool, in_progress, monkeypatch, in_loop, stack
):
    """Nobody else uses that thread."""
    held, await_, body = [], poller.await_, {"name": "x"}

    async def noting(*arguments, **keywords):
        held.append(await sync_to_async(lambda: connections["default"].connection)())
        return await await_(*arguments, **keywords)

    async def call_within():
        async with ThreadSensitiveContext():
            with pytest.raises(InProgress):
                await arun(never, key="k", scope="s", wait=0.1)

    pool(3)
    policy(WAIT=0.1, TRANSACTION="separate")
    monkeypatch.setattr(poller, "await_", noting)
    if stack == "call within ASGI":
        elsewhere, holder = Context(), attempt(key="k", scope="s")
        elsewhere.run(holder.__enter__)
        in_loop(call_within)
        elsewhere.run(holder.__exit__, None, None, None)
    else:
        wsgi = api_for("wsgi", "/async-function/")
        wsgi(body)
        in_progress()
        answer = wsgi(body) if stack == "WSGI" else in_loop(lambda: send("async-function", body))
        assert answer.status_code == 409
    assert held
    assert not any(held)


@pytest.mark.parametrize("mode", ["single", "joined"], indirect=True)
@pytest.mark.parametrize("own_context", [True, False], ids=["context of the request", "no context"])
def test_R57_failure_of_one_leaves_the_others_rows(mode, own_context, gate, in_loop):
    """Both have written before the first one fails; on one connection that would take both."""

    async def main():
        body = {**PAUSED, "name": "failing", "after": "boom"}
        failing = asyncio.create_task(send("async-function", body, context=own_context))
        await asyncio.to_thread(gate.reached.wait, 10)
        body = {"name": "standing"}
        standing = await send("async-function", body, "key-2", context=own_context)
        gate.open.set()
        return standing.status_code, (await failing).status_code

    assert in_loop(main) == (201, 500)
    assert [effect.name for effect in Effect.objects.all()] == ["standing"]


def test_R88_requests_of_coroutines_do_not_wait_for_each_others_second_connection(
    policy, pool, in_loop
):
    """Each has used one, to see who asks, on the thread that its transaction leaves."""
    meeting = threading.Barrier(2)

    def scope(request):
        execute("SELECT 1")
        meeting.wait(LONG)
        return "s"

    policy(TRANSACTION="joined", HTTP={"SCOPE": scope})
    pool(2)

    async def main():
        bodies = [{"name": name} for name in ("a", "b")]
        sent = [send("async-function", body, body["name"]) for body in bodies]
        return await asyncio.gather(*sent)

    assert [answer.status_code for answer in in_loop(main)] == [201, 201]


def test_R51_request_that_waits_on_a_shared_thread_leaves_its_connection_to_others(
    policy, pool, gate, in_loop
):
    """As requests of AsyncClient in a test do, which no ASGIHandler gives a thread."""
    policy(TRANSACTION="separate", WAIT=LONG)
    pool(2)

    async def main():
        first = asyncio.create_task(send("async-function", context=False))
        assert await asyncio.to_thread(gate.reached.wait, LONG)
        session = sync_to_async(lambda: connections["default"].connection)
        reading = await session()
        second = asyncio.create_task(send("async-function", context=False))
        await asyncio.to_thread(
            wait_until, lambda: any(poller._waiters.values()), seconds=LONG, what="the waiter"
        )
        assert await session() is reading is not None
        gate.open.set()
        return await asyncio.gather(first, second)

    assert [replayed(answer) for answer in in_loop(main)] == [False, True]
