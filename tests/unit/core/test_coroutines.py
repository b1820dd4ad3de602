"""Coroutines: whose connection their work runs on, and what a cancellation leaves behind."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from functools import partial

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from django.db import IntegrityError, connections, transaction

import django_idempotency as idempotency
from django_idempotency import InProgress, LeaseLost, TransactionOpen
from django_idempotency.codecs import JSONCodec
from django_idempotency.conf import engine_for, store_for
from django_idempotency.engine import Operation
from django_idempotency.exceptions import StoreError
from django_idempotency.fingerprint import Fingerprint
from django_idempotency.keys import record_id
from django_idempotency.policy import Policy
from django_idempotency.records import State
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.memory import MemoryStore
from django_idempotency.transactions import of_caller
from tests.app.models import Child, Effect, Unique

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


class TestArun:
    def test_R24_first_and_R25_again(self, mode, in_loop, work):
        job = work({"id": 5})

        async def main():
            return [await arun(job.asynchronous) for _ in range(3)]

        outcomes = in_loop(main)
        assert [outcome.result for outcome in outcomes] == [{"id": 5}] * 3
        assert [outcome.replayed for outcome in outcomes] == [False, True, True]
        assert (job.runs, job.effects) == (1, 1)

    def test_R24_below_a_synchronous_caller(self, mode, work):
        job = work({"id": 5})

        async def main():
            return [await arun(job.asynchronous) for _ in range(2)]

        assert [outcome.replayed for outcome in async_to_sync(main)()] == [False, True]
        assert (job.runs, job.effects) == (1, 1)

    def test_sync_and_async_share_their_records(self, mode, in_loop, work):
        job = work(1)
        in_loop(lambda: arun(job.asynchronous))
        assert idempotency.run(job, key="k", scope="s").replayed is True

    @pytest.mark.parametrize(
        "error",
        [ValueError("boom"), StopAsyncIteration(), KeyError(1)],
        ids=lambda e: type(e).__name__,
    )
    def test_R58_an_error_passes_on_unchanged_and_the_next_try_runs(
        self, mode, in_loop, work, error
    ):
        async def main():
            with pytest.raises(type(error)) as caught:
                await arun(work(error).asynchronous)
            assert caught.value is error
            return await arun(work("second").asynchronous)

        assert in_loop(main).result == "second"

    def test_R57_what_failed_work_wrote_is_rolled_back(self, joining_mode, in_loop, work):
        async def main():
            with pytest.raises(ValueError, match="boom"):
                await arun(work(ValueError("boom")).asynchronous)

        in_loop(main)
        assert names() == []

    def test_R58_a_deferred_constraint_that_fails_at_the_commit(self, joining_mode, in_loop):
        async def orphan(lease):
            await Child.objects.acreate(parent_id=10**9)

        async def main():
            with pytest.raises(IntegrityError):
                await arun(orphan)
            return await arun(effect)

        assert in_loop(main).replayed is False

    def test_a_broken_transaction_is_rolled_back(self, joining_mode, in_loop):
        async def twice(lease):
            await effect(lease)
            await Unique.objects.acreate(name="taken")

        async def main():
            await Unique.objects.acreate(name="taken")
            with pytest.raises(IntegrityError):
                await arun(twice)
            return await arun(effect)

        assert in_loop(main).replayed is False
        assert names() == ["x"]

    # On SQLite the work holds the only write lock: nobody can take over meanwhile.
    @pytest.mark.leg("postgres18", "postgres16")
    def test_R66_a_lost_lease_rolls_the_work_back(self, settings, in_loop):
        settings.IDEMPOTENCY = {"default": {"TRANSACTION": "joined", "RENEW": False}}

        async def stalled(lease):
            await effect(lease)
            await asyncio.to_thread(take_over, lease)

        async def main():
            with pytest.raises(LeaseLost):
                await arun(stalled)

        def take_over(lease):
            """What a take-over leaves: another epoch and token in the row."""
            try:
                with connections["default"].cursor() as cursor:
                    cursor.execute("UPDATE idempotency_record SET epoch = epoch + 1")
            finally:
                connections.close_all()

        in_loop(main)
        assert names() == []

    def test_R62_unstorable_results(self, mode, in_loop, work):
        job = work(lambda: "x" * 2_000_000)

        async def main():
            return await arun(job.asynchronous)

        if mode in ("joined", "single"):
            with pytest.raises(idempotency.ResultTooLarge):
                in_loop(main)
            assert job.effects == 0
        else:
            assert in_loop(main).stored is False
            with pytest.raises(idempotency.ResultUnavailable):
                in_loop(main)

    def test_R50_equal_coroutines_run_once(self, mode, in_loop, work):
        job = work(1)

        async def call():
            try:
                return await arun(job.asynchronous)
            except InProgress:
                return None

        async def main():
            return await asyncio.gather(*(call() for _ in range(8)))

        outcomes = [outcome for outcome in in_loop(main) if outcome is not None]
        assert [outcome.replayed for outcome in outcomes].count(False) == 1
        assert (job.runs, job.effects) == (1, 1)


class TestInterleaved:
    """Two attempts of different keys, at work at the same time on one loop."""

    def test_the_failure_of_one_leaves_the_others_rows(self, joining_mode, in_loop):
        """
        One writes, waits while the other does all of its work, and fails.

        On one shared connection the second one's commit would be a savepoint of the first one's
        transaction. On SQLite the second one has to wait for the first one's write lock.
        """

        async def main():
            written = asyncio.Event()

            async def failing(lease):
                await Effect.objects.acreate(name="failing")
                written.set()
                await asyncio.wait([other], timeout=0.5)
                raise ValueError("boom")

            async def standing(lease):
                return (await Effect.objects.acreate(name="standing")).pk

            async def second():
                await written.wait()
                return await arun(standing, key="standing")

            other = asyncio.create_task(second())
            with pytest.raises(ValueError, match="boom"):
                await arun(failing, key="failing")
            outcome = await other
            return outcome, await arun(never, key="standing")

        outcome, again = in_loop(main)
        assert names() == ["standing"]
        assert (outcome.replayed, again.replayed) == (False, True)

    @pytest.mark.leg("postgres18", "postgres16")
    def test_the_failure_of_one_in_the_midst_of_the_other(self, joining_mode, in_loop):
        """Both have written before the first one fails; then the second one goes on."""

        async def main():
            written = [asyncio.Event(), asyncio.Event()]
            failed = asyncio.Event()

            async def failing(lease):
                await Effect.objects.acreate(name="failing")
                written[0].set()
                await written[1].wait()
                raise ValueError("boom")

            async def standing(lease):
                await written[0].wait()
                await Effect.objects.acreate(name="before")
                written[1].set()
                await failed.wait()
                await Effect.objects.acreate(name="after")

            other = asyncio.create_task(arun(standing, key="standing"))
            with pytest.raises(ValueError, match="boom"):
                await arun(failing, key="failing")
            failed.set()
            await other

        in_loop(main)
        assert names() == ["after", "before"]

    @pytest.mark.leg("postgres18", "postgres16")
    def test_many_at_once_where_every_other_one_fails(self, joining_mode, in_loop):
        async def main():
            all_written = asyncio.Barrier(6) if hasattr(asyncio, "Barrier") else None

            async def work(lease):
                number = int(lease.request.key)
                await Effect.objects.acreate(name=str(number))
                if all_written is not None:
                    await all_written.wait()
                if number % 2:
                    raise ValueError("boom")

            await asyncio.gather(
                *(arun(work, key=str(number)) for number in range(6)), return_exceptions=True
            )

        in_loop(main)
        assert names() == ["0", "2", "4"]

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

    def test_connections_of_their_threads_are_closed(self, joining_mode, in_loop):
        """Those of every alias that the work used: a ResourceWarning would fail the test."""
        used = []

        def note(lease):
            Effect.objects.create(name="x")
            used.append(connections["default"])

        async def main():
            await asyncio.gather(*(arun(sync_to_async(note), key=str(n)) for n in range(2)))

        in_loop(main)
        assert len({id(connection) for connection in used}) == 2
        assert [connection.connection for connection in used] == [None, None]


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_connections_to_other_databases_are_closed_too(in_loop):
    used = []

    def work(lease):
        Effect.objects.using("other").create(name="x")
        used.append(connections["other"])

    in_loop(lambda: arun(sync_to_async(work), transaction="joined"))
    assert [connection.connection for connection in used] == [None]


class TestSharedThread:
    """Where coroutines must share a thread, the second transaction is refused, not mixed in."""

    async def two(self, **arguments):
        """Start a second attempt while the first one works; return what each of them raised."""
        working, refused = asyncio.Event(), asyncio.Event()

        async def first(lease):
            await Effect.objects.acreate(name="first")
            working.set()
            await refused.wait()

        async def second():
            await working.wait()
            try:
                await arun(never, key="second", **arguments)
            finally:
                refused.set()

        return await asyncio.gather(
            arun(first, key="first", **arguments), second(), return_exceptions=True
        )

    @pytest.mark.parametrize("mode", ["joined", "single"])
    def test_below_a_synchronous_caller(self, mode):
        first, second = async_to_sync(self.two)(transaction=mode)
        assert first.replayed is False
        assert isinstance(second, TransactionOpen)
        assert names() == ["first"]

    @pytest.mark.parametrize("mode", ["joined", "single"])
    def test_in_a_thread_sensitive_context_of_a_request(self, mode, in_loop):
        async def main():
            async with ThreadSensitiveContext():
                try:
                    return await self.two(transaction=mode)
                finally:
                    await sync_to_async(connections.close_all)()

        first, second = in_loop(main)
        assert first.replayed is False
        assert isinstance(second, TransactionOpen)
        assert names() == ["first"]

    def test_a_synchronous_attempt_of_another_coroutine_is_refused_too(self):
        async def main():
            working, refused = asyncio.Event(), asyncio.Event()

            async def first(lease):
                working.set()
                await refused.wait()

            async def second():
                await working.wait()
                try:
                    await sync_to_async(idempotency.run)(pytest.fail, key="second", scope="s")
                finally:
                    refused.set()

            return await asyncio.gather(
                arun(first, key="first", transaction="joined"), second(), return_exceptions=True
            )

        first, second = async_to_sync(main)()
        assert first.stored is True
        assert isinstance(second, TransactionOpen)

    def test_one_after_the_other_is_fine(self, in_loop):
        async def main():
            async with ThreadSensitiveContext():
                for key in ("a", "b"):
                    await arun(effect, key=key, transaction="joined")
                await sync_to_async(connections.close_all)()

        in_loop(main)
        assert names() == ["x", "x"]

    def test_one_inside_the_other_is_fine(self, in_loop):
        async def outer(lease):
            await arun(effect, key="inner")
            await effect(lease)

        in_loop(lambda: arun(outer, key="outer", transaction="joined"))
        assert names() == ["x", "x"]

    def test_in_the_callers_transaction_the_default_is_single(self):
        async def main():
            outcome = await arun(effect)
            return outcome.replayed

        with transaction.atomic():
            assert async_to_sync(main)() is False
            transaction.set_rollback(True)
        assert names() == []
        assert idempotency.run(lambda lease: 1, key="k", scope="s").replayed is False


class TestCancellation:
    """R63: the ending is final before the CancelledError arrives."""

    async def cancelled(self, work, started, *, times=1):
        task = asyncio.create_task(arun(work))
        await started.wait()
        for _ in range(times):
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # At this very moment, on a connection of another thread:
        return await asyncio.to_thread(now)

    @pytest.mark.parametrize("times", [1, 3], ids=["once", "three times"])
    def test_R63_in_mid_work_it_rolls_back_and_fails(self, joining_mode, in_loop, times):
        async def main():
            started = asyncio.Event()

            async def work(lease):
                await Effect.objects.acreate(name="x")
                started.set()
                await asyncio.Event().wait()

            at_once = await self.cancelled(work, started, times=times)
            return at_once, await arun(effect)

        at_once, retried = in_loop(main)
        assert at_once == (State.FAILED, [])
        assert retried.replayed is False
        assert names() == ["x"]

    def test_R63_separate_fails(self, separate_mode, in_loop):
        async def main():
            started = asyncio.Event()

            async def work(lease):
                started.set()
                await asyncio.Event().wait()

            state, _ = await self.cancelled(work, started)
            assert state is State.FAILED
            return await arun(effect)

        assert in_loop(main).replayed is False

    def test_R63_in_the_midst_of_work_in_a_thread(self, joining_mode, in_loop):
        """The thread goes on; the rollback waits for it, so nothing is written afterwards."""
        go_on = threading.Event()

        async def main():
            started = asyncio.Event()
            loop = asyncio.get_running_loop()

            def in_thread():
                Effect.objects.create(name="before")
                loop.call_soon_threadsafe(started.set)
                go_on.wait(10)
                Effect.objects.create(name="after")

            async def work(lease):
                await sync_to_async(in_thread)()

            async def release():
                await started.wait()
                await asyncio.sleep(0)
                go_on.set()

            task = asyncio.create_task(release())
            at_once = await self.cancelled(work, started)
            await task
            return at_once

        assert in_loop(main) == (State.FAILED, [])

    def test_R63_an_attempt_is_ended_alike(self, joining_mode, in_loop):
        async def main():
            started = asyncio.Event()

            async def block():
                async with idempotency.attempt(key="k", scope="s") as attempt:
                    await Effect.objects.acreate(name="x")
                    attempt.complete(1)
                    started.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(block())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await asyncio.to_thread(now)

        assert in_loop(main) == (State.FAILED, [])

    def test_R63_a_time_out_is_a_time_out(self, mode, in_loop):
        async def main():
            async def work(lease):
                await asyncio.Event().wait()

            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(arun(work), 0.1)
            return await arun(effect)

        assert in_loop(main).replayed is False


class SlowStore(DatabaseStore):
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


class TestCancellationInTheMachinery:
    """Cancelled while a statement of ours is under way in its thread."""

    @pytest.fixture
    def slow(self, settings, monkeypatch):
        def configure(mode, operation):
            settings.IDEMPOTENCY = {
                "default": {"BACKEND": f"{__name__}.SlowStore", "TRANSACTION": mode}
            }
            monkeypatch.setattr(SlowStore, "slow", operation)
            monkeypatch.setattr(SlowStore, "reached", threading.Event(), raising=False)
            monkeypatch.setattr(SlowStore, "go_on", threading.Event(), raising=False)

        return configure

    def cancel(self, in_loop):
        """Cancel as soon as the operation is reached; return what the task raised and the retry."""

        async def main():
            task = asyncio.create_task(arun(effect))
            await asyncio.to_thread(SlowStore.reached.wait, 10)
            task.cancel()
            await asyncio.sleep(0)
            SlowStore.go_on.set()
            [raised] = await asyncio.gather(task, return_exceptions=True)
            return raised, await arun(effect)

        return in_loop(main)

    moment = pytest.mark.parametrize("moment", ["before", "after"])

    @moment
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
        raised, retried = self.cancel(in_loop)
        assert isinstance(raised, asyncio.CancelledError)
        assert retried.replayed is False
        assert names() == ["x"]

    @moment
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
        raised, retried = self.cancel(in_loop)
        assert isinstance(raised, asyncio.CancelledError)
        # Kept or rolled back, but one of the two, and never twice.
        assert retried.stored
        assert names() == ["x"]
        if mode == "separate" or (mode, operation) == ("joined", "commit"):
            assert retried.replayed is True

    @moment
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
            await asyncio.to_thread(SlowStore.reached.wait, 10)
            task.cancel()
            await asyncio.wait([task], timeout=0.1)
            assert not task.done()
            SlowStore.go_on.set()
            [raised] = await asyncio.gather(task, return_exceptions=True)
            return raised, await asyncio.to_thread(now)

        raised, (state, written) = in_loop(main)
        assert isinstance(raised, asyncio.CancelledError)
        assert state is State.FAILED
        assert written == (["x"] if mode == "separate" else [])


def test_R60_the_completion_of_separate_cannot_be_written(settings, in_loop, monkeypatch, caplog):
    settings.IDEMPOTENCY = {"default": {"TRANSACTION": "separate"}}

    def broken(self, *arguments, **options):
        raise StoreError("no complete")

    monkeypatch.setattr(DatabaseStore, "complete", broken)
    outcome = in_loop(lambda: arun(effect))
    assert outcome.stored is False
    assert [entry.levelname for entry in caplog.records] == ["ERROR"]


class StuckStore(MemoryStore):
    """A store that needs no thread of the work, and does not answer one operation until told."""

    thread_sensitive = False

    def __init__(self):
        super().__init__()
        self.stuck = ""
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def answer(self, operation, function):
        result = function()
        if operation == self.stuck:
            self.stuck = ""
            self.reached.set()
            self.go_on.wait(10)
        return result

    def claim(self, request):
        return self.answer("claim", lambda: MemoryStore.claim(self, request))

    def complete(self, lease, result, *, retention):
        complete = partial(MemoryStore.complete, self, lease, result, retention=retention)
        return self.answer("complete", complete)

    def fail(self, lease, error):
        return self.answer("fail", lambda: MemoryStore.fail(self, lease, error))

    def release(self, lease):
        return self.answer("release", lambda: MemoryStore.release(self, lease))


class TestStoreThatDoesNotAnswer:
    """The one thread of a loop's database work does not wait for a store that needs none."""

    @pytest.fixture
    def stuck(self, settings):
        settings.IDEMPOTENCY = {"default": {"BACKEND": f"{__name__}.StuckStore"}}
        store = store_for()
        yield store
        store.go_on.set()

    async def others_work(self, stuck):
        """Do other work of this loop while the store does not answer."""
        assert await asyncio.to_thread(stuck.reached.wait, 10)
        await asyncio.wait_for(Effect.objects.acreate(name="other"), 5)

    def state(self, stuck):
        return stuck.get(record_id("call", "s", "k")).state

    async def boom(self, lease):
        raise ValueError("boom")

    async def complete(self):
        await arun(lambda lease: asyncio.sleep(0, "A"))

    async def fail(self):
        with pytest.raises(ValueError, match="boom"):
            await arun(self.boom)

    async def release(self):
        async with idempotency.attempt(key="k", scope="s"):
            pass

    async def answer(self, on_error=lambda error: "an answer", **options):
        """Let an adapter make an answer of what the work raised, and keep it."""
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
        async with engine_for("default").aattempt(operation, on_error) as attempt:
            if not attempt.replayed:
                await self.boom(attempt.lease)
        return attempt

    @pytest.mark.parametrize(
        ("ending", "operation", "state"),
        [
            ("complete", "complete", State.COMPLETED),
            ("fail", "fail", State.FAILED),
            ("release", "release", State.RELEASED),
            ("answer", "complete", State.COMPLETED),
        ],
        ids=["complete", "fail", "release", "answer"],
    )
    def test_R58_at_the_end(self, stuck, in_loop, ending, operation, state):
        async def main():
            task = asyncio.create_task(getattr(self, ending)())
            await self.others_work(stuck)
            assert not task.done()
            stuck.go_on.set()
            await task

        stuck.stuck = operation
        in_loop(main)
        assert self.state(stuck) is state

    def test_R63_where_a_claim_is_given_back(self, stuck, in_loop):
        async def main():
            task = asyncio.create_task(arun(never))
            assert await asyncio.to_thread(stuck.reached.wait, 10)
            stuck.stuck = "fail"
            stuck.reached.clear()
            task.cancel()
            stuck.go_on.set()
            stuck.go_on = threading.Event()
            await self.others_work(stuck)
            assert not task.done()
            stuck.go_on.set()
            [raised] = await asyncio.gather(task, return_exceptions=True)
            return raised

        stuck.stuck = "claim"
        assert isinstance(in_loop(main), asyncio.CancelledError)
        assert self.state(stuck) is State.FAILED

    def test_R63_cancelled_while_the_end_is_written(self, stuck, in_loop):
        async def main():
            task = asyncio.create_task(arun(self.boom))
            assert await asyncio.to_thread(stuck.reached.wait, 10)
            task.cancel()
            await asyncio.wait([task], timeout=0.1)
            assert not task.done()
            stuck.go_on.set()
            [raised] = await asyncio.gather(task, return_exceptions=True)
            return raised

        stuck.stuck = "fail"
        assert isinstance(in_loop(main), asyncio.CancelledError)
        assert self.state(stuck) is State.FAILED

    def test_R58_the_adapter_answers_on_the_thread_of_the_work(self, stuck, in_loop):
        async def main():
            threads = []
            await self.answer(lambda error: threads.append(threading.current_thread()))
            return threads, await sync_to_async(threading.current_thread)()

        threads, of_work = in_loop(main)
        assert threads == [of_work]

    def test_R58_an_answer_waits_for_the_callers_commit(self, stuck):
        """The hook goes to the caller's connection, which is that of the work's thread."""

        async def main():
            caller = await sync_to_async(of_caller)(stuck)
            attempt = await self.answer(caller=caller)
            return attempt.result, self.state(stuck)

        with transaction.atomic():
            assert async_to_sync(main)() == ("an answer", State.IN_PROGRESS)
        assert self.state(stuck) is State.COMPLETED

    def test_R62_an_answer_that_cannot_be_kept_frees_the_key(self, stuck, in_loop):
        """An adapter that may not do without its answer is told, and the next try runs."""

        async def main():
            with pytest.raises(TypeError):
                await self.answer(lambda error: object())

        in_loop(main)
        assert self.state(stuck) is State.FAILED

    @pytest.mark.parametrize("end", ["fail", "release"])
    def test_R58_an_end_that_cannot_be_written_masks_nothing(
        self, stuck, in_loop, caplog, monkeypatch, end
    ):
        def broken(*arguments):
            raise StoreError("no end")

        monkeypatch.setattr(stuck, end, broken)
        in_loop(getattr(self, end))
        assert [entry.levelname for entry in caplog.records if entry.levelno > 30] == ["ERROR"]
        assert "no end" in caplog.text
        assert self.state(stuck) is State.IN_PROGRESS
