"""Coroutines: whose thread their work runs on, and what a cancellation leaves behind (R63)."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from functools import partial

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from django.db import connections, transaction

import django_idempotency as idempotency
from django_idempotency import TransactionOpen
from django_idempotency.codecs import JSONCodec
from django_idempotency.conf import engine_for, store_for
from django_idempotency.engine import Operation
from django_idempotency.engine.transactions import of_caller
from django_idempotency.fingerprint import Fingerprint
from django_idempotency.keys import record_id
from django_idempotency.policy import Policy
from django_idempotency.records import State
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.memory import MemoryStore
from tests.app.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)


async def arun(func, key="k", **arguments):
    return await idempotency.arun(func, key=key, scope="s", **arguments)


async def never(lease):
    pytest.fail("ran")


async def effect(lease):
    return (await Effect.objects.acreate(name="x")).pk


def names():
    return sorted(Effect.objects.values_list("name", flat=True))


def now():
    """The record's state and the rows, as another connection sees them at this moment."""
    try:
        record = store_for().get(record_id("call", "s", "k"))
        return record and record.state, names()
    finally:
        connections.close_all()


class TestSharedThread:
    """Where coroutines must share a thread, the second transaction is refused, not mixed in."""

    async def two(self, second, **arguments):
        """Start a second attempt while the first one works; return what each of them raised."""
        working, refused = asyncio.Event(), asyncio.Event()

        async def first(lease):
            await Effect.objects.acreate(name="first")
            working.set()
            await refused.wait()

        async def call_second():
            await working.wait()
            try:
                await second()
            finally:
                refused.set()

        return await asyncio.gather(
            arun(first, key="first", **arguments), call_second(), return_exceptions=True
        )

    @pytest.mark.parametrize("mode", ["joined", "single"])
    @pytest.mark.parametrize("where", ["below a synchronous caller", "in a request's context"])
    @pytest.mark.parametrize("kind", ["run", "arun"])
    def test_I5_the_second_attempt_is_refused(self, mode, where, kind, in_loop):
        def second():
            call = sync_to_async(idempotency.run) if kind == "run" else idempotency.arun
            work = pytest.fail if kind == "run" else never
            return call(work, key="second", scope="s", transaction=mode)

        async def main():
            async with ThreadSensitiveContext():
                try:
                    return await self.two(second, transaction=mode)
                finally:
                    await sync_to_async(connections.close_all)()

        if where == "in a request's context":
            first, refused = in_loop(main)
        else:
            first, refused = async_to_sync(self.two)(second, transaction=mode)
        assert first.replayed is False
        assert isinstance(refused, TransactionOpen)
        assert names() == ["first"]

    @pytest.mark.parametrize("nested", [False, True], ids=["one after the other", "nested"])
    def test_attempts_that_do_not_interleave_are_fine(self, in_loop, nested):
        async def outer(lease):
            await arun(effect, key="inner")
            await effect(lease)

        async def main():
            async with ThreadSensitiveContext():
                for key in ("a", "b"):
                    await arun(effect, key=key, transaction="joined")
                await sync_to_async(connections.close_all)()

        in_loop(partial(arun, outer, key="outer", transaction="joined") if nested else main)
        assert names() == ["x", "x"]

    def test_separate_ones_share_a_connection_and_no_transaction(self, in_loop):
        async def main():
            written = asyncio.Event()

            async def failing(lease):
                await Effect.objects.acreate(name="failing")
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

    def test_in_the_callers_transaction_the_default_is_single(self):
        async def main():
            return (await arun(effect)).replayed

        with transaction.atomic():
            assert async_to_sync(main)() is False
            transaction.set_rollback(True)
        assert names() == []
        assert idempotency.run(lambda lease: 1, key="k", scope="s").replayed is False


class TestCancellation:
    """R63: the ending is final before the CancelledError arrives."""

    async def cancelled(self, call, started, *, times=1):
        task = asyncio.create_task(call)
        await started.wait()
        for _ in range(times):
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # At this very moment, on a connection of another thread:
        return await asyncio.to_thread(now)

    @pytest.mark.parametrize(("caller", "times"), [("arun", 1), ("arun", 3), ("attempt", 1)])
    def test_R63_in_mid_work_it_rolls_back_and_fails(self, mode, in_loop, caller, times):
        async def main():
            started = asyncio.Event()

            async def work(lease):
                await Effect.objects.acreate(name="x")
                started.set()
                await asyncio.Event().wait()

            async def block():
                async with idempotency.attempt(key="k", scope="s") as attempt:
                    attempt.complete(1)
                    await work(attempt.lease)

            call = arun(work) if caller == "arun" else block()
            at_once = await self.cancelled(call, started, times=times)
            return at_once, await arun(effect)

        at_once, retried = in_loop(main)
        assert at_once == (State.FAILED, [] if mode in ("single", "joined") else ["x"])
        assert retried.replayed is False

    @pytest.mark.parametrize("mode", ["single", "joined"])
    def test_R63_in_the_midst_of_work_in_a_thread(self, mode, in_loop):
        """The thread goes on; the rollback waits for it, so nothing is written afterwards."""
        go_on = threading.Event()

        async def main():
            started = asyncio.Event()
            loop = asyncio.get_running_loop()

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
            call = arun(sync_to_async(in_thread), transaction=mode)
            at_once = await self.cancelled(call, started)
            await task
            return at_once

        assert in_loop(main) == (State.FAILED, [])

    def test_R63_a_time_out_is_a_time_out(self, mode, in_loop):
        async def main():
            async def work(lease):
                await asyncio.Event().wait()

            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(arun(work), 0.05)
            return await arun(effect)

        assert in_loop(main).replayed is False


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

    def fail(self, lease, error):
        with self.paused("fail"):
            super().fail(lease, error)

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


@pytest.mark.parametrize("moment", ["before", "after"])
class TestCancellationInTheMachinery:
    """Cancelled while a statement of ours is under way in its thread."""

    @pytest.fixture
    def slow(self, settings, monkeypatch):
        def configure(mode, operation):
            backend = f"{__name__}.Slow"
            settings.IDEMPOTENCY = {"default": {"BACKEND": backend, "TRANSACTION": mode}}
            monkeypatch.setattr(Slow, "slow", operation)
            monkeypatch.setattr(Slow, "reached", threading.Event(), raising=False)
            monkeypatch.setattr(Slow, "go_on", threading.Event(), raising=False)

        return configure

    def cancel(self, in_loop):
        """Cancel as soon as the operation is reached; return what the task raised and the retry."""

        async def main():
            task = asyncio.create_task(arun(effect))
            await asyncio.to_thread(Slow.reached.wait, 10)
            task.cancel()
            await asyncio.sleep(0)
            Slow.go_on.set()
            [raised] = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(raised, asyncio.CancelledError)
            return await arun(effect)

        return in_loop(main)

    @pytest.mark.parametrize(
        ("mode", "operation"),
        [
            ("separate", "claim"),
            ("joined", "claim"),
            ("joined", "begin"),
            ("joined", "fence"),
            ("single", "begin"),
            ("single", "claim"),
        ],
    )
    def test_R63_before_the_work_the_key_is_free_again(
        self, slow, in_loop, mode, operation, moment
    ):
        slow(mode, f"{moment} {operation}")
        assert self.cancel(in_loop).replayed is False
        assert names() == ["x"]

    @pytest.mark.parametrize(
        ("mode", "operation"),
        [
            ("separate", "complete"),
            ("joined", "complete"),
            ("joined", "commit"),
            ("single", "complete"),
            ("single", "commit"),
        ],
    )
    def test_R63_a_completion_already_begun_runs_to_its_end(
        self, slow, in_loop, mode, operation, moment
    ):
        slow(mode, f"{moment} {operation}")
        retried = self.cancel(in_loop)
        # Kept or rolled back, but one of the two, and never twice.
        assert retried.stored
        assert names() == ["x"]
        if mode == "separate" or (mode, operation) == ("joined", "commit"):
            assert retried.replayed is True

    @pytest.mark.parametrize("mode", ["separate", "joined", "single"])
    def test_R63_cancelled_again_while_the_end_is_written(self, slow, in_loop, mode, moment):
        slow(mode, f"{moment} fail")

        async def main():
            started = asyncio.Event()

            async def work(lease):
                await effect(lease)
                started.set()
                await asyncio.Event().wait()

            task = asyncio.create_task(arun(work))
            await started.wait()
            task.cancel()
            await asyncio.to_thread(Slow.reached.wait, 10)
            task.cancel()
            await asyncio.wait([task], timeout=0.02)
            assert not task.done()
            Slow.go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await asyncio.to_thread(now)

        assert in_loop(main) == (State.FAILED, ["x"] if mode == "separate" else [])


class Stuck(MemoryStore):
    """A store that needs no thread of the work, and does not answer one operation until told."""

    thread_sensitive = False

    def __init__(self):
        super().__init__()
        self.stuck = ""
        self.reached = threading.Event()
        self.go_on = threading.Event()

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


class TestStoreThatDoesNotAnswer:
    """The one thread of a loop's database work does not wait for a store that needs none."""

    @pytest.fixture
    def stuck(self, settings):
        settings.IDEMPOTENCY = {"default": {"BACKEND": f"{__name__}.Stuck"}}
        store = store_for()
        yield store
        store.go_on.set()

    def state(self, stuck):
        return stuck.get(record_id("call", "s", "k")).state

    async def end(self, ending, on_error=lambda error: "an answer", **options):
        """Leave a block in one of the ways, of which "answer" is what an adapter keeps (R58)."""
        operation = Operation(
            record_id=record_id("call", "s", "k"),
            scope="s",
            key="k",
            name="",
            fingerprint=Fingerprint(b"", (b"f" * 32,)),
            policy=Policy(),
            codec=JSONCodec(),
            **options,
        )
        on_error = on_error if ending == "answer" else None
        async with engine_for("default").aattempt(operation, on_error) as attempt:
            if ending in ("fail", "answer"):
                raise ValueError("boom")
            if ending == "complete":
                attempt.complete(1)
        return attempt

    @pytest.mark.parametrize(
        ("ending", "state"),
        [
            ("complete", State.COMPLETED),
            ("answer", State.COMPLETED),
            ("fail", State.FAILED),
            ("release", State.RELEASED),
        ],
    )
    def test_R58_at_the_end(self, stuck, in_loop, ending, state):
        async def main():
            task = asyncio.create_task(self.end(ending))
            assert await asyncio.to_thread(stuck.reached.wait, 10)
            await asyncio.wait_for(Effect.objects.acreate(name="other"), 5)
            assert not task.done()
            stuck.go_on.set()
            await asyncio.wait([task])
            return task.exception()

        stuck.stuck = "complete" if ending == "answer" else ending
        assert (in_loop(main) is None) is (ending != "fail")
        assert self.state(stuck) is state

    def test_R58_the_adapter_answers_on_the_thread_of_the_work(self, stuck, in_loop):
        async def main():
            threads = []
            await self.end("answer", lambda error: threads.append(threading.current_thread()))
            return threads, await sync_to_async(threading.current_thread)()

        threads, of_work = in_loop(main)
        assert threads == [of_work]

    def test_R58_an_answer_waits_for_the_callers_commit(self, stuck):
        """The hook goes to the caller's connection, which is that of the work's thread."""

        async def main():
            caller = await sync_to_async(of_caller)(stuck)
            attempt = await self.end("answer", caller=caller)
            return attempt.result, self.state(stuck)

        with transaction.atomic():
            assert async_to_sync(main)() == ("an answer", State.IN_PROGRESS)
        assert self.state(stuck) is State.COMPLETED

    def test_R62_an_answer_that_cannot_be_kept_frees_the_key(self, stuck, in_loop):
        """An adapter that may not do without its answer is told, and the next try runs."""

        async def main():
            with pytest.raises(TypeError):
                await self.end("answer", lambda error: object())

        in_loop(main)
        assert self.state(stuck) is State.FAILED
