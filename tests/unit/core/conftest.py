"""The stores and modes that the rules are shown on, a clock of the test's own, and a loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from hypothesis import settings as hypothesis_settings

from django_idempotency.conf import store_for
from tests.app.models import Effect

MEMORY = "django_idempotency.stores.memory.MemoryStore"

# How long one example takes says nothing here, on a machine that runs other tests beside it.
hypothesis_settings.register_profile("core", deadline=None)
hypothesis_settings.load_profile("core")


class Clock:
    """The time of a memory store: it stands still until the test says otherwise."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=timezone.utc)

    def __call__(self) -> datetime:
        return self.now

    def tick(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Work:
    """Work that counts its runs and leaves an Effect for each one that commits."""

    def __init__(self, result: Any = "done") -> None:
        self.result = result
        self.runs = 0
        self.leases: list[Any] = []

    def __call__(self, lease: Any) -> Any:
        self.runs += 1
        self.leases.append(lease)
        Effect.objects.create(name=f"run {self.runs}")
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result() if callable(self.result) else self.result

    async def asynchronous(self, lease: Any) -> Any:
        return await sync_to_async(self)(lease)

    @property
    def effects(self) -> int:
        return Effect.objects.count()


@pytest.fixture
def work() -> type[Work]:
    """`work(result)` makes work; a callable result is called, an exception raised."""
    return Work


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory(settings: Any, clock: Clock) -> Any:
    """The default alias is a memory store whose time is `clock`."""
    settings.IDEMPOTENCY = {"default": {"BACKEND": MEMORY, "OPTIONS": {"clock": clock}}}
    return store_for()


def _configure(settings: Any, clock: Clock, mode: str) -> str:
    if mode == "memory":
        settings.IDEMPOTENCY = {"default": {"BACKEND": MEMORY, "OPTIONS": {"clock": clock}}}
    else:
        settings.IDEMPOTENCY = {"default": {"TRANSACTION": mode}}
    return mode


@pytest.fixture(params=["single", "joined", "separate", "memory"])
def mode(request: Any, settings: Any, clock: Clock, transactional_db: None) -> str:
    """The default alias in each mode on the database, and on a memory store."""
    return _configure(settings, clock, request.param)


@pytest.fixture(params=["single", "joined"])
def joining_mode(request: Any, settings: Any, clock: Clock, transactional_db: None) -> str:
    """The default alias in the modes in which work and record commit together."""
    return _configure(settings, clock, request.param)


@pytest.fixture(params=["separate", "memory"])
def separate_mode(request: Any, settings: Any, clock: Clock, transactional_db: None) -> str:
    """The default alias where the completion commits by itself."""
    return _configure(settings, clock, request.param)


@pytest.fixture
def in_loop() -> Callable[..., Any]:
    """
    `in_loop(main)` awaits ``main()`` in a new loop, with no synchronous caller above it.

    So threads and connections of coroutines are what they are under an ASGI server.
    """

    def run(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        async def closing() -> Any:
            try:
                return await asyncio.wait_for(main(), 20)
            finally:
                await sync_to_async(connections.close_all)()

        return asyncio.run(closing())

    return run
