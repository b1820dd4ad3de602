"""Who calls, in which mode and on which store: each rule of the engine is told once, of all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from hypothesis import settings as hypothesis_settings

import django_idempotency as idempotency
from django_idempotency import journal
from django_idempotency.conf import store_for
from django_idempotency.keys import record_id
from django_idempotency.testing import FakeClock
from tests.app.models import Effect

MEMORY = "django_idempotency.stores.memory.MemoryStore"

# How long one example takes says nothing here, on a machine that runs other tests beside it. The
# examples are the same each time: what has failed once fails again.
hypothesis_settings.register_profile("core", deadline=None, derandomize=True, max_examples=20)
hypothesis_settings.load_profile("core")


class Work:
    """Work that counts its runs and leaves an Effect for each one that commits."""

    def __init__(self, result: Any = "done") -> None:
        self.result = result
        self.leases: list[Any] = []

    def __call__(self, lease: Any) -> Any:
        self.leases.append(lease)
        assert idempotency.current() is lease
        Effect.objects.create(name=f"run {self.runs}")
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result() if callable(self.result) else self.result

    @property
    def runs(self) -> int:
        return len(self.leases)

    @property
    def effects(self) -> int:
        return Effect.objects.count()


def never(*arguments: Any) -> Any:
    """Be the work that must not run."""
    pytest.fail("ran")


def fail(lease: Any = None) -> Any:
    raise ValueError("boom")


def run(func: Any, key: str = "k", **arguments: Any) -> Any:
    return idempotency.run(func, key=key, scope="s", **arguments)


def begin(key: str = "k", **arguments: Any) -> Any:
    return idempotency.attempt(key=key, scope="s", **arguments)


def kept(key: str = "k", kind: str = "call") -> Any:
    """What the default store keeps of a call."""
    return store_for().get(record_id(kind, "s", key))


def noted(key: str = "k") -> list[str]:
    """The steps whose results are in the journal of a call."""
    return [*journal.read(kept(key).steps).results]


class Calls:
    """``calls("a", result)`` is work that notes that it ran, and returns or raises `result`."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []

    def __call__(self, name: str, result: Any = None) -> Callable[..., Any]:
        def work(*args: Any, **kwargs: Any) -> Any:
            self.made.append((name, *args))
            if isinstance(result, BaseException):
                raise result
            return result

        return work


@pytest.fixture
def calls() -> Calls:
    return Calls()


def names() -> list[str]:
    return sorted(Effect.objects.values_list("name", flat=True))


def levels(caplog: Any) -> list[str]:
    return [entry.levelname for entry in caplog.records]


def run_in_loop(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """
    Await ``main()`` in a new loop, with no synchronous caller above it.

    So threads and connections of coroutines are what they are under an ASGI server.
    """

    async def closing() -> Any:
        try:
            return await asyncio.wait_for(main(), 120)
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(closing())


async def cancel(work: Any, entered: Awaitable[Any], leave: Any) -> None:
    """Cancel an attempt in steps, as often as it likes, once it has `entered`; let it `leave`."""
    attempt = idempotency.arun(work, key="k", scope="s", transaction="steps")
    task = asyncio.ensure_future(attempt)
    await entered
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    leave.set()
    with pytest.raises(asyncio.CancelledError):
        await task


def _arun(work: Any, **arguments: Any) -> Any:
    return run_in_loop(lambda: idempotency.arun(sync_to_async(work), **arguments))


def _attempt(work: Any, **arguments: Any) -> Any:
    with idempotency.attempt(**arguments) as attempt:
        attempt.replayed or attempt.complete(work(attempt.lease))
    return attempt.outcome


def _aattempt(work: Any, **arguments: Any) -> Any:
    async def main() -> Any:
        async with idempotency.attempt(**arguments) as attempt:
            if not attempt.replayed:
                attempt.complete(await sync_to_async(work)(attempt.lease))
        return attempt.outcome

    return run_in_loop(main)


def _decorated(work: Any, *, key: str, payload: Any = None, **arguments: Any) -> Any:
    """Its caller gets the result alone."""
    ran = []

    @idempotency.idempotent_function(key="key", payload=lambda key: payload, **arguments)
    def function(key: str) -> Any:
        ran.append(key)
        return work(idempotency.current())

    return SimpleNamespace(result=function(key), replayed=not ran, stored=None)


CALLERS = {"run": idempotency.run, "arun": _arun, "attempt": _attempt, "aattempt": _aattempt}
CALLERS["decorated"] = _decorated
# The synchronous path of the engine in each mode, the asynchronous one where the modes differ.
JOINING = [("run", "single"), ("run", "joined"), ("arun", "joined"), ("aattempt", "single")]
#: ``@callers([(caller, mode), …])``: those that a test of `call` is about.
callers = partial(pytest.mark.parametrize, "call", indirect=True, ids="-".join)
joining = callers(JOINING)


class Call:
    """``call(work)``: one caller in one mode, by default under the key "k" of scope "s"."""

    def __init__(self, caller: str, mode: str) -> None:
        self.caller = caller
        self.mode = mode
        self.joins = mode in ("single", "joined")

    def __call__(self, work: Any, **arguments: Any) -> Any:
        return CALLERS[self.caller](work, **{"key": "k", "scope": "s", **arguments})


@pytest.fixture
def work() -> type[Work]:
    """`work(result)` makes work; a callable result is called, an exception raised."""
    return Work


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def memory(settings: Any, clock: FakeClock) -> Any:
    """The default alias is a memory store whose time is `clock`."""
    configure(settings, clock, "memory")
    return store_for()


def configure(settings: Any, clock: FakeClock, mode: str) -> str:
    """Let the default alias be in this mode, on a memory store or on the database."""
    stored = {"BACKEND": MEMORY, "OPTIONS": {"clock": clock}}
    settings.IDEMPOTENCY = {"default": stored if mode == "memory" else {"TRANSACTION": mode}}
    return mode


@pytest.fixture(params=["single", "joined", "memory"])
def mode(request: Any, settings: Any, clock: FakeClock, transactional_db: None) -> str:
    """The default alias in both modes that join, and on a memory store."""
    return configure(settings, clock, request.param)


@pytest.fixture(params=[*JOINING, ("arun", "memory"), ("decorated", "separate")], ids="-".join)
def call(request: Any, settings: Any, clock: FakeClock, transactional_db: None) -> Call:
    """Each caller and mode, or those that `callers` names."""
    caller, mode = request.param
    configure(settings, clock, mode)
    return Call(caller, mode)


@pytest.fixture
def in_loop() -> Callable[..., Any]:
    """See `run_in_loop`."""
    return run_in_loop
