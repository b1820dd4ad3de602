"""Coroutines: whose thread their work runs on, and what a cancellation leaves behind (R63)."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, connections, transaction

import django_idempotency as idempotency
from django_idempotency import TransactionOpen
from django_idempotency.conf import engine_for, store_for, stores
from django_idempotency.engine.ending import Verdict
from django_idempotency.engine.threads import finish
from django_idempotency.http.plans import ViewPlan
from django_idempotency.records import State
from django_idempotency.stores.database import DatabaseStore
from django_idempotency.stores.memory import MemoryStore
from django_idempotency.transactions.outer import OuterTransaction
from tests.app.models import Effect
from tests.claims import found, operation
from tests.unit.core.conftest import kept, names, never, run

pytestmark = pytest.mark.django_db(transaction=True)


async def arun(func, key="k", **arguments):
    return await idempotency.arun(func, key=key, scope="s", **arguments)


async def effect(lease, name="x"):
    return (await Effect.objects.acreate(name=name)).pk


async def keyless(work, key, mode="joined"):
    """As a request without a key, whose work has a transaction and no claim."""
    plan = ViewPlan.of(stores.configured("default"))
    async with plan.engine.aattempt(plan.unrecorded("", transaction=mode)) as attempt:
        attempt.complete(await effect(None, key))


SECOND = {"arun": arun, "run": sync_to_async(run), "keyless": keyless}


@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("is_testcase", [False, True], ids=["caller", "TestCase"])
def test_I5_where_coroutines_share_a_thread_the_second_attempt_is_refused(second, is_testcase):
    """As they do in a transaction of their caller's, and in a TestCase. The first goes on."""

    async def main():
        working, refused = asyncio.Event(), asyncio.Event()

        async def first(lease):
            await effect(lease, "first")
            working.set()
            await refused.wait()
            await effect(lease, "again")

        async def call_second():
            await working.wait()
            try:
                await SECOND[second](never, "second")
            finally:
                refused.set()

        return await asyncio.gather(
            arun(first, "first", transaction=mode), call_second(), return_exceptions=True
        )

    mode = "joined" if is_testcase else "single"
    around = transaction.atomic()
    around._from_testcase = is_testcase
    with around:
        answer, error = async_to_sync(main)()

    assert answer.replayed is False
    assert isinstance(error, TransactionOpen)
    assert names() == ["again", "first"]


def test_deadline_may_read_the_database(in_loop):
    """As each callable of the policy: it is not asked on the loop."""
    outcome = in_loop(lambda: arun(effect, deadline=lambda: 60 + Effect.objects.count()))

    assert outcome.replayed is False


# R63: the ending is final before the CancelledError arrives.


def test_R63_in_mid_work_it_rolls_back_and_fails(mode, in_loop):
    def now():
        """The record's state and the rows, as another connection sees them at this moment."""
        try:
            return kept().state, names()
        finally:
            connections.close_all()

    async def main():
        started = asyncio.Event()

        async def work(lease):
            await effect(lease)
            started.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(arun(work))
        await started.wait()
        for _ in range(3):
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await asyncio.to_thread(now), await arun(effect)

    at_once, retried = in_loop(main)
    assert at_once == (State.FAILED, ["x"] if mode == "memory" else [])
    assert retried.replayed is False


@pytest.fixture
def cancel_and_retry(settings, monkeypatch, in_loop):
    """``cancel_and_retry("mode-operation")``: cancel while that is under way in its thread."""
    reached, go_on = threading.Event(), threading.Event()

    def pause():
        if not reached.is_set():
            reached.set()
            go_on.wait(60)

    async def main():
        task = asyncio.create_task(arun(effect))
        await asyncio.to_thread(reached.wait, 60)
        for _ in range(2):  # the second one is what asgiref does not wait for
            task.cancel()
            await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await arun(effect)

    def cancel_and_retry(at):
        mode, operation = at.split("-")
        name = "atomic" if operation in ("begin", "commit") else operation
        original = getattr(DatabaseStore, name)

        @contextmanager
        def atomic(store, **options):
            with original(store, **options):
                if operation == "begin":
                    pause()
                yield
            if operation == "commit":
                pause()

        def then_pause(store, *arguments, **options):
            answer = original(store, *arguments, **options)
            pause()
            return answer

        monkeypatch.setattr(DatabaseStore, name, atomic if name == "atomic" else then_pause)
        settings.IDEMPOTENCY = {"default": {"TRANSACTION": mode}}
        return in_loop(main)

    return cancel_and_retry


@pytest.mark.parametrize("at", ["joined-claim", "joined-begin", "joined-fence", "single-claim"])
def test_R63_before_the_work_the_key_is_free_again(cancel_and_retry, at):
    assert cancel_and_retry(at).replayed is False
    assert names() == ["x"]


def test_R63_a_keyless_block_that_opens_is_closed_again(monkeypatch):
    """In a transaction of its caller's, whose connection stays."""
    reached, go_on = threading.Event(), threading.Event()
    atomic = DatabaseStore.atomic

    @contextmanager
    def pause(store, **options):
        with atomic(store, **options):
            reached.set()
            go_on.wait(60)
            yield

    async def main():
        task = asyncio.create_task(keyless(never, "k"))
        await asyncio.to_thread(reached.wait, 60)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    monkeypatch.setattr(DatabaseStore, "atomic", pause)
    with transaction.atomic():
        opened = len(connection.atomic_blocks)
        async_to_sync(main)()
        assert len(connection.atomic_blocks) == opened


@pytest.mark.parametrize("at", ["separate-complete", "joined-complete", "joined-commit"])
def test_R63_a_completion_already_begun_runs_to_its_end(cancel_and_retry, at):
    """Kept or rolled back, but one of the two, and never twice."""
    retried = cancel_and_retry(at)
    assert retried.stored
    assert names() == ["x"]
    assert retried.replayed or at == "joined-complete"


def test_R63_verdict_already_begun_runs_to_its_end_and_the_completion_with_it(memory, in_loop):
    """The work is done: were the key free, a retry would do it again."""
    reached, go_on = threading.Event(), threading.Event()

    def judge(result):
        reached.set()
        go_on.wait(60)
        return Verdict()

    async def call():
        async with engine_for("default").aattempt(operation(), None, judge) as attempt:
            attempt.complete("done")

    async def main():
        task = asyncio.create_task(call())
        await asyncio.to_thread(reached.wait, 60)
        task.cancel()
        for _ in range(20):  # turns of the loop, in which it would go on
            await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    in_loop(main)
    assert found(memory).state is State.COMPLETED


def test_R63_what_fails_after_the_cancellation_is_its_cause(in_loop):
    async def ending(outcome):
        await asyncio.sleep(0.01)
        if outcome is not None:
            raise outcome

    async def call(outcome):
        with pytest.raises(asyncio.CancelledError) as raised:
            await finish(ending(outcome))
        return raised.value

    async def cancelled(outcome):
        task = asyncio.ensure_future(call(outcome))
        await asyncio.sleep(0)
        task.cancel("by the caller")
        error = await task
        assert error.args == ("by the caller",)
        return error.__cause__

    failure = ValueError("boom")
    assert in_loop(lambda: cancelled(failure)) is failure
    assert in_loop(lambda: cancelled(None)) is None
    assert in_loop(lambda: cancelled(asyncio.CancelledError("by itself"))) is None


# A store whose client needs no thread of the work.


class Stuck(MemoryStore):
    """A store that does not tell of a completion until told."""

    def __init__(self):
        super().__init__()
        self.reached, self.go_on = threading.Event(), threading.Event()

    def complete(self, lease, result, *, retention):
        expires_at = super().complete(lease, result, retention=retention)
        self.reached.set()
        self.go_on.wait(60)
        return expires_at


def test_R58_the_one_thread_of_a_loops_database_work_does_not_wait_for_it(settings, in_loop):
    async def main():
        task = asyncio.create_task(arun(effect))
        assert await asyncio.to_thread(store.reached.wait, 60)
        try:
            await asyncio.wait_for(Effect.objects.acreate(name="other"), 30)
            assert not task.done()
        finally:
            store.go_on.set()
        await task

    settings.IDEMPOTENCY = {"default": {"BACKEND": f"{__name__}.Stuck"}}
    store = store_for()
    in_loop(main)
    assert kept().state is State.COMPLETED


class Hanging(MemoryStore):
    """A store whose server answers no claim until told."""

    def __init__(self):
        super().__init__()
        self.reached, self.go_on = threading.Semaphore(0), threading.Event()

    def claim(self, request):
        self.reached.release()
        self.go_on.wait(60)
        return super().claim(request)


def test_a_store_that_hangs_stops_nobody_who_does_not_ask_it(settings, in_loop):
    """Not the loop's default threads, nor the thread of its connections, nor another store."""

    async def main():
        calls = [asyncio.create_task(arun(effect, f"k{n}")) for n in range(50)]
        for _ in calls:
            assert await asyncio.to_thread(store.reached.acquire, timeout=60)
        try:
            other = await asyncio.wait_for(arun(effect, store="other"), 30)
            assert not any(call.done() for call in calls)
        finally:
            store.go_on.set()
        return other, await asyncio.gather(*calls)

    settings.IDEMPOTENCY = {
        "default": {"BACKEND": f"{__name__}.Hanging"},
        "other": {"BACKEND": "django_idempotency.stores.memory.MemoryStore"},
    }
    store = store_for()
    other, outcomes = in_loop(main)
    assert (other.replayed, len({outcome.result for outcome in outcomes})) == (False, 50)


def test_R90_a_store_that_hangs_stops_nobody_without_a_key(settings, monkeypatch, in_loop):
    """Not even where each thread of the store has a call that hangs."""
    monkeypatch.setattr("django_idempotency.engine.threads._THREADS", 1)

    async def main():
        call = asyncio.create_task(arun(effect))
        assert await asyncio.to_thread(store.reached.acquire, timeout=60)
        other = asyncio.create_task(keyless(None, "keyless", "separate"))
        done, _ = await asyncio.wait([other], timeout=20)
        store.go_on.set()
        await asyncio.gather(call, other)
        assert done

    settings.IDEMPOTENCY = {"default": {"BACKEND": f"{__name__}.Hanging"}}
    store = store_for()
    in_loop(main)
    assert names() == ["keyless", "x"]


def test_R94_the_completion_of_a_coroutine_is_left_on_the_thread_of_the_callers_transaction(
    memory,
):
    threads = []

    class Outer(OuterTransaction):
        def after_commit(self, complete):
            threads.append(threading.current_thread())
            super().after_commit(complete)

    async def main():
        guarded = replace(operation(), outer=Outer([connections["default"]]))
        async with engine_for("default").aattempt(guarded) as attempt:
            attempt.complete("done")

    with transaction.atomic():
        async_to_sync(main)()
    assert threads == [threading.current_thread()]
    assert found(memory).state is State.COMPLETED


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
