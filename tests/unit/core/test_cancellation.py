"""Coroutines: whose thread their work runs on, and what a cancellation leaves behind (R63)."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from django.db import connections

import django_idempotency as idempotency
from django_idempotency import TransactionOpen
from django_idempotency.conf import engine_for, store_for
from django_idempotency.records import State
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.memory import MemoryStore
from tests.app.models import Effect
from tests.claims import found, operation
from tests.unit.core.conftest import kept, names, never, run

pytestmark = pytest.mark.django_db(transaction=True)


async def arun(func, key="k", **arguments):
    return await idempotency.arun(func, key=key, scope="s", **arguments)


async def effect(lease, name="x"):
    return (await Effect.objects.acreate(name=name)).pk


@pytest.mark.parametrize(
    ("mode", "in_a_request", "second"), [("joined", True, "arun"), ("single", False, "run")]
)
def test_I5_where_coroutines_share_a_thread_the_second_attempt_is_refused(
    mode, in_a_request, second, in_loop
):
    async def two():
        working, refused = asyncio.Event(), asyncio.Event()

        async def first(lease):
            await effect(lease, "first")
            working.set()
            await refused.wait()

        async def call_second():
            await working.wait()
            call = arun if second == "arun" else sync_to_async(run)
            try:
                await call(never, "second", transaction=mode)
            finally:
                refused.set()

        calls = (arun(first, "first", transaction=mode), call_second())
        return await asyncio.gather(*calls, return_exceptions=True)

    async def main():
        async with ThreadSensitiveContext():
            try:
                return await two()
            finally:
                await sync_to_async(connections.close_all)()

    answer, error = in_loop(main) if in_a_request else async_to_sync(two)()
    assert answer.replayed is False
    assert isinstance(error, TransactionOpen)
    assert names() == ["first"]


# R63: the ending is final before the CancelledError arrives.


async def cancelled(call, started, *, times=1):
    """Return the record's state and the rows, as another connection sees them at that moment."""

    def now():
        try:
            return kept().state, names()
        finally:
            connections.close_all()

    task = asyncio.create_task(call)
    await started.wait()
    for _ in range(times):
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return await asyncio.to_thread(now)


def test_R63_in_mid_work_it_rolls_back_and_fails(mode, in_loop):
    async def main():
        started = asyncio.Event()

        async def work(lease):
            await effect(lease)
            started.set()
            await asyncio.Event().wait()

        return await cancelled(arun(work), started, times=3), await arun(effect)

    at_once, retried = in_loop(main)
    assert at_once == (State.FAILED, ["x"] if mode == "memory" else [])
    assert retried.replayed is False


class Slow(DatabaseStore):
    """A database store that stops once, when it has done what `slow` says, until told."""

    slow = ""
    reached: threading.Event
    go_on: threading.Event

    @classmethod
    def done(cls, operation):
        if operation == cls.slow:
            cls.slow = ""
            cls.reached.set()
            cls.go_on.wait(10)

    def claim(self, request):
        claimed = super().claim(request)
        self.done("claim")
        return claimed

    def complete(self, lease, result, *, retention):
        expires_at = super().complete(lease, result, retention=retention)
        self.done("complete")
        return expires_at

    def fence(self, lease):
        super().fence(lease)
        self.done("fence")

    @contextmanager
    def atomic(self, **options):
        with super().atomic(**options):
            self.done("begin")
            yield
        self.done("commit")


@pytest.fixture
def cancel_and_retry(settings, monkeypatch, in_loop):
    """``cancel_and_retry("mode-operation")``: cancel while that is under way in its thread."""

    async def main():
        task = asyncio.create_task(arun(effect))
        await asyncio.to_thread(Slow.reached.wait, 10)
        task.cancel()
        await asyncio.sleep(0)
        Slow.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await arun(effect)

    def cancel_and_retry(at):
        mode, operation = at.split("-")
        settings.IDEMPOTENCY = {"default": {"BACKEND": f"{__name__}.Slow", "TRANSACTION": mode}}
        monkeypatch.setattr(Slow, "slow", operation)
        monkeypatch.setattr(Slow, "reached", threading.Event(), raising=False)
        monkeypatch.setattr(Slow, "go_on", threading.Event(), raising=False)
        return in_loop(main)

    return cancel_and_retry


@pytest.mark.parametrize("at", ["joined-claim", "joined-begin", "joined-fence", "single-claim"])
def test_R63_before_the_work_the_key_is_free_again(cancel_and_retry, at):
    assert cancel_and_retry(at).replayed is False
    assert names() == ["x"]


@pytest.mark.parametrize("at", ["separate-complete", "joined-complete", "joined-commit"])
def test_R63_a_completion_already_begun_runs_to_its_end(cancel_and_retry, at):
    """Kept or rolled back, but one of the two, and never twice."""
    retried = cancel_and_retry(at)
    assert retried.stored
    assert names() == ["x"]
    assert retried.replayed or at == "joined-complete"


# A store whose client needs no thread of the work.


class Stuck(MemoryStore):
    """A store that does not tell of a completion until told."""

    thread_sensitive = False

    def __init__(self):
        super().__init__()
        self.reached, self.go_on = threading.Event(), threading.Event()

    def complete(self, lease, result, *, retention):
        expires_at = super().complete(lease, result, retention=retention)
        self.reached.set()
        self.go_on.wait(10)
        return expires_at


def test_R58_the_one_thread_of_a_loops_database_work_does_not_wait_for_it(settings, in_loop):
    async def main():
        task = asyncio.create_task(arun(effect))
        assert await asyncio.to_thread(store.reached.wait, 10)
        try:
            await asyncio.wait_for(Effect.objects.acreate(name="other"), 5)
            assert not task.done()
        finally:
            store.go_on.set()
        await task

    settings.IDEMPOTENCY = {"default": {"BACKEND": f"{__name__}.Stuck"}}
    store = store_for()
    in_loop(main)
    assert kept().state is State.COMPLETED


def test_R58_R62_the_adapter_answers_on_the_thread_of_the_work(memory, in_loop):
    """If its answer cannot be kept, it is told, and the next try runs."""
    threads = []

    def answer(error):
        threads.append(threading.current_thread())
        return {1}  # which is no JSON

    async def main():
        asked = replace(operation(), unstorable_ok=False)
        with pytest.raises(TypeError):
            async with engine_for("default").aattempt(asked, answer):
                raise ValueError("boom")
        return await sync_to_async(threading.current_thread)()

    assert in_loop(main) is threads[0]
    assert found(memory).state is State.FAILED
