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

in_mode = pytest.mark.parametrize("mode", ["joined", "single"])


async def arun(func, key="k", **arguments):
    return await idempotency.arun(func, key=key, scope="s", **arguments)


async def anever(lease):
    never()


async def effect(lease, name="x"):
    return (await Effect.objects.acreate(name=name)).pk


def now():
    """The record's state and the rows, as another connection sees them at this moment."""
    try:
        return kept().state, names()
    finally:
        connections.close_all()


@pytest.mark.parametrize(
    ("mode", "in_a_request", "second"),
    [("joined", True, "arun"), ("single", False, "arun"), ("single", True, "run")],
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
            try:
                if second == "arun":
                    await arun(anever, "second", transaction=mode)
                else:
                    await sync_to_async(run)(never, "second", transaction=mode)
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


def test_attempts_of_one_thread_that_do_not_interleave_are_fine(in_loop):
    async def outer(lease):
        await arun(effect, key="inner")
        await effect(lease)

    async def main():
        async with ThreadSensitiveContext():
            for key in ("a", "b"):
                await arun(outer if key == "b" else effect, key=key, transaction="joined")
            await sync_to_async(connections.close_all)()

    in_loop(main)
    assert names() == ["x"] * 3


def test_separate_ones_share_a_connection_and_no_transaction(in_loop):
    async def main():
        written = asyncio.Event()

        async def failing(lease):
            await effect(lease, "failing")
            written.set()
            await other
            raise ValueError("boom")

        async def second():
            await written.wait()
            return await arun(effect, key="standing")

        other = asyncio.create_task(second())
        with pytest.raises(ValueError, match="boom"):
            await arun(failing, key="failing")

    in_loop(main)
    assert names() == ["failing", "x"]


# R63: the ending is final before the CancelledError arrives.


async def cancelled(call, started, *, times=1):
    task = asyncio.create_task(call)
    await started.wait()
    for _ in range(times):
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # At this very moment, on a connection of another thread:
    return await asyncio.to_thread(now)


@pytest.mark.parametrize(("caller", "times"), [("arun", 3), ("attempt", 1)])
def test_R63_in_mid_work_it_rolls_back_and_fails(mode, in_loop, caller, times):
    async def main():
        started = asyncio.Event()

        async def work(lease):
            await effect(lease)
            started.set()
            await asyncio.Event().wait()

        async def block():
            async with idempotency.attempt(key="k", scope="s") as attempt:
                attempt.complete(1)
                await work(attempt.lease)

        call = arun(work) if caller == "arun" else block()
        return await cancelled(call, started, times=times), await arun(effect)

    at_once, retried = in_loop(main)
    assert at_once == (State.FAILED, ["x"] if mode == "memory" else [])
    assert retried.replayed is False


@in_mode
def test_R63_in_the_midst_of_work_in_a_thread(mode, in_loop):
    """The thread goes on; the rollback waits for it, so nothing is written afterwards."""
    go_on = threading.Event()

    async def main():
        started, loop = asyncio.Event(), asyncio.get_running_loop()

        def in_thread(lease):
            Effect.objects.create(name="before")
            loop.call_soon_threadsafe(started.set)
            go_on.wait(10)
            Effect.objects.create(name="after")

        async def release():
            await started.wait()
            await asyncio.sleep(0)
            go_on.set()

        task = asyncio.create_task(release())
        at_once = await cancelled(arun(sync_to_async(in_thread), transaction=mode), started)
        await task
        return at_once

    assert in_loop(main) == (State.FAILED, [])


class Slow(DatabaseStore):
    """A database store that stops once before or after the named operation, until told."""

    slow = ""
    reached: threading.Event
    go_on: threading.Event

    @contextmanager
    def paused(self, operation):
        self.pause(f"before {operation}")
        yield
        self.pause(f"after {operation}")

    def pause(self, moment):
        if moment == type(self).slow:
            type(self).slow = ""
            self.reached.set()
            self.go_on.wait(10)

    def claim(self, request):
        with self.paused("claim"):
            return super().claim(request)

    def complete(self, lease, result, *, retention):
        with self.paused("complete"):
            return super().complete(lease, result, retention=retention)

    def fence(self, lease):
        with self.paused("fence"):
            super().fence(lease)

    def atomic(self, **options):
        return SlowBlock(self, super().atomic(**options))


class SlowBlock:
    def __init__(self, store, block):
        self.store = store
        self.block = block

    def __enter__(self):
        with self.store.paused("begin"):
            return self.block.__enter__()

    def __exit__(self, *exc_info):
        with self.store.paused("commit"):
            return self.block.__exit__(*exc_info)


@pytest.fixture(params=["before", "after"])
def slow(request, settings, monkeypatch):
    """``slow(mode, operation)``: a statement of ours is under way in its thread."""

    def configure(mode, operation):
        settings.IDEMPOTENCY = {"default": {"BACKEND": f"{__name__}.Slow", "TRANSACTION": mode}}
        monkeypatch.setattr(Slow, "slow", f"{request.param} {operation}")
        monkeypatch.setattr(Slow, "reached", threading.Event(), raising=False)
        monkeypatch.setattr(Slow, "go_on", threading.Event(), raising=False)

    return configure


async def cancel_and_retry():
    """Cancel as soon as the operation is reached; return the answer of the retry."""
    task = asyncio.create_task(arun(effect))
    await asyncio.to_thread(Slow.reached.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    Slow.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    return await arun(effect)


BEFORE_THE_WORK = "separate-claim joined-claim joined-begin joined-fence single-begin single-claim"
AFTER_IT = "separate-complete joined-complete joined-commit single-complete single-commit"


@pytest.mark.parametrize("at", BEFORE_THE_WORK.split())
def test_R63_before_the_work_the_key_is_free_again(slow, in_loop, at):
    slow(*at.split("-"))
    assert in_loop(cancel_and_retry).replayed is False
    assert names() == ["x"]


@pytest.mark.parametrize("at", AFTER_IT.split())
def test_R63_a_completion_already_begun_runs_to_its_end(slow, in_loop, at):
    """Kept or rolled back, but one of the two, and never twice."""
    slow(*at.split("-"))
    retried = in_loop(cancel_and_retry)
    assert retried.stored
    assert names() == ["x"]
    if at in ("separate-complete", "joined-commit"):
        assert retried.replayed is True


# The one thread of a loop's database work does not wait for a store that needs none.


class Stuck(MemoryStore):
    """A store that needs no thread of the work, and does not answer one operation until told."""

    thread_sensitive = False
    stuck = ""

    def __init__(self):
        super().__init__()
        self.reached, self.go_on = threading.Event(), threading.Event()

    def answer(self, operation, function, *arguments, **options):
        result = function(*arguments, **options)
        if operation == self.stuck:
            self.stuck = ""
            self.reached.set()
            self.go_on.wait(10)
        return result

    def complete(self, lease, result, *, retention):
        return self.answer("complete", super().complete, lease, result, retention=retention)

    def fail(self, lease, error):
        return self.answer("fail", super().fail, lease, error)

    def release(self, lease):
        return self.answer("release", super().release, lease)


@pytest.fixture
def stuck(settings):
    settings.IDEMPOTENCY = {"default": {"BACKEND": f"{__name__}.Stuck"}}
    store = store_for()
    yield store
    store.go_on.set()


async def end(ending, on_error=None):
    """Leave a block in one of the ways, of which "answer" is what an adapter keeps (R58)."""
    asked = replace(operation(), unstorable_ok=False)
    async with engine_for("default").aattempt(asked, on_error) as attempt:
        if ending in ("fail", "answer"):
            raise ValueError("boom")
        if ending == "complete":
            attempt.complete(1)
    return attempt


@pytest.mark.parametrize(
    ("ending", "on_error", "stuck_at", "state"),
    [
        ("complete", None, "complete", State.COMPLETED),
        ("answer", lambda error: "an answer", "complete", State.COMPLETED),
        ("fail", None, "fail", State.FAILED),
        ("release", None, "release", State.RELEASED),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_R58_at_the_end_other_work_goes_on(stuck, in_loop, ending, on_error, stuck_at, state):
    async def main():
        task = asyncio.create_task(end(ending, on_error))
        assert await asyncio.to_thread(stuck.reached.wait, 10)
        await asyncio.wait_for(Effect.objects.acreate(name="other"), 5)
        assert not task.done()
        stuck.go_on.set()
        await asyncio.wait([task])
        return task.exception()

    stuck.stuck = stuck_at
    assert (in_loop(main) is None) is (ending != "fail")
    assert found(stuck).state is state


def test_R58_R62_the_adapter_answers_on_the_thread_of_the_work(stuck, in_loop):
    """If its answer cannot be kept, it is told, and the next try runs."""

    async def main():
        threads = []
        with pytest.raises(TypeError):
            await end("answer", lambda error: threads.append(threading.current_thread()) or {1})
        return threads, await sync_to_async(threading.current_thread)()

    threads, of_work = in_loop(main)
    assert threads == [of_work]
    assert found(stuck).state is State.FAILED
