"""Fixtures of the views: the two stacks, the kinds of views, and a gate in their work."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import threading
from contextlib import AsyncExitStack, contextmanager
from types import SimpleNamespace

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connections
from django.test import AsyncClient, Client

from django_idempotency.engine import waiting
from tests.services.processes import wait_until
from tests.unit.http.api import Api
from tests.unit.http.conftest import (
    atomic,
    atomic_requests,
    in_progress,
    mode,
    policy,
    runs,
    store_is_down,
)
from tests.unit.views.urls import ASYNC
from tests.unit.views.work import PATIENCE, PAUSED, Gate, gates

__all__ = ["atomic", "atomic_requests", "in_progress", "mode", "policy", "runs", "store_is_down"]

USERS = "tests.unit.views.users.HeaderUsers"
GUARD = "django_idempotency.http.middleware.IdempotencyMiddleware"


#: For what both paths of the guard share.
a_function = pytest.mark.parametrize("kind", ["function"], indirect=True)


class AsgiClient(AsyncClient):
    """Django's AsyncClient for a synchronous test: a loop for each request."""

    def generic(self, *arguments, **keywords):
        sent = super().generic(*arguments, **keywords)

        async def send():
            try:
                return await sent
            finally:
                await sync_to_async(connections.close_all)()

        return asyncio.run(send())


def api_for(stack: str, path: str = "", *, raises: bool = True) -> Api:
    """Return an Api that sends to a path unless told otherwise."""
    api = Api()
    api.path = path
    api.client = Client() if stack == "wsgi" else AsgiClient()
    api.client.raise_request_exception = raises
    return api


def api_of(kind: str, *, raises: bool = True) -> Api:
    """Return a client of the view of this kind, on the stack that it is at home in."""
    return api_for("asgi" if kind in ASYNC else "wsgi", f"/{kind}/", raises=raises)


@pytest.fixture(scope="session", autouse=True)
def collected(nothing_left_behind):
    """
    Free what tracebacks hold in cycles, before threads are counted.

    `async_to_sync` runs a loop on a thread of an executor that ends when it is collected; an
    exception out of that loop keeps its frame, and so the executor.
    """
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def project(settings, policy, monkeypatch):
    """The project of these tests; its database is used from other threads, too."""
    settings.ROOT_URLCONF = "tests.unit.views.urls"
    settings.MIDDLEWARE = [USERS]
    # What it logs would hold tracebacks, and these a thread beyond the last test.
    monkeypatch.setattr(logging.getLogger("django.request"), "disabled", True)


@pytest.fixture
def with_middleware(settings, project):
    settings.MIDDLEWARE = [USERS, GUARD]


@pytest.fixture(params=["function", "async-function"])
def kind(request):
    """A view without a loop, and one on it."""
    return request.param


@pytest.fixture
def api(kind):
    """A client of the view of this kind."""
    return api_of(kind)


@pytest.fixture(name="gate")
def the_gate():
    """Where work of the kind "paused" waits for the test; open at the end in any case."""
    gates["gate"] = Gate()
    yield gates["gate"]
    gates.pop("gate").open.set()


@pytest.fixture
def in_loop():
    """`in_loop(main)` awaits ``main()`` in a new loop and closes its connections."""

    def run(main):
        async def closing():
            try:
                return await asyncio.wait_for(main(), 120)
            finally:
                await sync_to_async(connections.close_all)()

        return asyncio.run(closing())

    return run


async def send(kind, body=PAUSED, key="key-1", *, context=True):
    """Send a request; ASGIHandler gives each a ThreadSensitiveContext, and others do not."""

    async def close():
        closing = asyncio.ensure_future(sync_to_async(connections.close_all)())
        try:
            await asyncio.shield(closing)
        finally:  # a cancellation at this moment must not leave a thread behind
            await closing

    async with AsyncExitStack() as stack:
        if context:
            await stack.enter_async_context(ThreadSensitiveContext())
            stack.push_async_callback(close)
        return await AsyncClient(raise_request_exception=False).post(
            f"/{kind}/",
            json.dumps(body),
            content_type="application/json",
            headers={"Idempotency-Key": key, "X-User": "alice"},
        )


class Looks:
    """Counts how often duplicates found another attempt at work, and went on waiting."""

    busy = 0

    def wait_for(self, number: int) -> None:
        wait_until(lambda: self.busy >= number, seconds=PATIENCE, what=f"{number} looks in vain")


@pytest.fixture
def looks(monkeypatch):
    looks, goes_on = Looks(), waiting.Waiter.goes_on

    def noting(waiter, met):
        waits = goes_on(waiter, met)
        looks.busy += waits
        return waits

    monkeypatch.setattr(waiting.Waiter, "goes_on", noting)
    return looks


@pytest.fixture
def waited(monkeypatch):
    """A clock that only goes on while a duplicate waits: ``waited.seconds``."""
    clock = SimpleNamespace(seconds=0.0)

    def sleep(seconds):
        clock.seconds += seconds

    time = SimpleNamespace(monotonic=lambda: clock.seconds, sleep=sleep)
    with monkeypatch.context() as patched:
        patched.setattr(waiting, "time", time)
        patched.setattr(waiting.Poller, "_add", lambda poller, store, waiter: False)
        yield clock
    with waiting.poller._changed:  # a thread of an earlier test may have gone by this clock
        waiting.poller._changed.notify_all()


@contextmanager
def together(*calls):
    """Run calls, each in a thread of its own; their results stand in the list at the end."""
    answers = [None] * len(calls)

    def run(index):
        try:
            answers[index] = calls[index]()
        except BaseException as error:
            answers[index] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    try:
        yield answers
    except BaseException:
        for gate in gates.values():  # so that nobody waits for a test that has failed
            gate.open.set()
        raise
    finally:
        for thread in threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in threads)


def sending(kind, body=PAUSED, *, raises=True, **arguments):
    """Return a function that sends a request to a view of this kind."""
    return lambda: api_of(kind, raises=raises)(body, **arguments)
