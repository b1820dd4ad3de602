"""Fixtures of the views: the two stacks, the kinds of views, and a gate in their work."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient, Client

from django_idempotency import engine
from django_idempotency.engine import backoff as waiting
from django_idempotency.engine.backoff import Patience
from tests.services.processes import wait_until
from tests.unit.http.api import Api
from tests.unit.http.conftest import (  # noqa: F401
    SetPolicy,
    atomic_requests,
    in_progress,
    mode,
    policy,
    runs,
)
from tests.unit.views.urls import ASYNC, FREE, GUARDED
from tests.unit.views.work import PATIENCE, PAUSED, Gate, gates

USERS = "tests.unit.views.users.HeaderUsers"
GUARD = "django_idempotency.http.middleware.IdempotencyMiddleware"


class AsgiClient:
    """Django's AsyncClient for a synchronous test: a loop for each request."""

    def __init__(self) -> None:
        self.client = AsyncClient()

    @property
    def raise_request_exception(self) -> bool:
        return bool(self.client.raise_request_exception)

    @raise_request_exception.setter
    def raise_request_exception(self, value: bool) -> None:
        self.client.raise_request_exception = value

    def generic(self, *arguments: Any, **keywords: Any) -> Any:
        async def send() -> Any:
            try:
                return await self.client.generic(*arguments, **keywords)
            finally:
                await sync_to_async(connections.close_all)()

        return asyncio.run(send())


def client_for(stack: str) -> Any:
    return Client() if stack == "wsgi" else AsgiClient()


def api_for(stack: str, path: str = "") -> Api:
    """An Api that sends to a path unless told otherwise."""

    class At(Api):
        def __call__(self, *arguments: Any, **keywords: Any) -> Any:
            return super().__call__(*arguments, **{"path": path, **keywords})

    api = At()
    api.client = client_for(stack)
    return api


@pytest.fixture(scope="session", autouse=True)
def collected(nothing_left_behind: None) -> Iterator[None]:
    """
    Free what tracebacks hold in cycles, before threads are counted.

    `async_to_sync` runs a loop on a thread of an executor that ends when it is collected; an
    exception out of that loop keeps its frame, and so the executor.
    """
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def project(
    settings: Any,
    policy: SetPolicy,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The project of these tests; its database is used from other threads, too."""
    settings.ROOT_URLCONF = "tests.unit.views.urls"
    settings.MIDDLEWARE = [USERS]
    # What it logs would hold tracebacks, and these a thread beyond the last test.
    monkeypatch.setattr(logging.getLogger("django.request"), "disabled", True)


@pytest.fixture
def with_middleware(settings: Any, project: None) -> None:
    """The project has our middleware."""
    settings.MIDDLEWARE = [USERS, GUARD]


@pytest.fixture
def stack(kind: str) -> str:
    """The stack that a view is at home in."""
    return "asgi" if kind in ASYNC else "wsgi"


@pytest.fixture(params=[*GUARDED, *FREE])
def kind(request: pytest.FixtureRequest) -> str:
    """Every kind of guarded view; those that do not guard themselves have the middleware."""
    if request.param in FREE:
        request.getfixturevalue("with_middleware")
    return str(request.param)


@pytest.fixture
def api(stack: str, kind: str) -> Api:
    """A client of the view of this kind."""
    return api_for(stack, f"/{kind}/")


@pytest.fixture(name="gate")
def the_gate() -> Iterator[Gate]:
    """Where work of the kind "paused" waits for the test; open at the end in any case."""
    gates["gate"] = Gate()
    yield gates["gate"]
    gates["gate"].open.set()
    del gates["gate"]


@pytest.fixture
def in_loop() -> Callable[..., Any]:
    """`in_loop(main)` awaits ``main()`` in a new loop and closes its connections."""

    def run(main: Callable[[], Any]) -> Any:
        async def closing() -> Any:
            try:
                return await asyncio.wait_for(main(), 60)
            finally:
                await sync_to_async(connections.close_all)()

        return asyncio.run(closing())

    return run


class Looks:
    """Counts how often duplicates found another attempt at work, and went on waiting."""

    def __init__(self) -> None:
        self.busy = 0

    def wait_for(self, number: int) -> None:
        wait_until(lambda: self.busy >= number, seconds=20, what=f"{number} looks in vain")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    looks = Looks()
    next_pause = Patience.next

    def noting(patience: Patience) -> float:
        pause = next_pause(patience)
        looks.busy += pause > 0
        return pause

    monkeypatch.setattr(Patience, "next", noting)
    return looks


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that only goes on while a duplicate waits: ``waited.seconds``."""
    clock = SimpleNamespace(seconds=0.0)

    def sleep(seconds: float) -> None:
        clock.seconds += seconds

    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: clock.seconds))
    monkeypatch.setattr(engine, "time", SimpleNamespace(sleep=sleep))
    return clock


@contextmanager
def together(*calls: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run calls, each in a thread of its own; their results stand in the list at the end."""
    answers: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
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


def sending(
    kind: str, body: Any = PAUSED, *, raises: bool = True, **arguments: Any
) -> Callable[[], Any]:
    """A request to a view of this kind, on the stack of that kind."""

    def send() -> Any:
        api = api_for("asgi" if kind in ASYNC else "wsgi", f"/{kind}/")
        api.client.raise_request_exception = raises
        return api(body, **arguments)

    return send
