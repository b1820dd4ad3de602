"""Steps: what an attempt does with a name, a result and a note, on a store without transactions."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from contextvars import Context
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from unittest.mock import Mock

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import transaction

import django_idempotency as idempotency
from django_idempotency import (
    FingerprintMismatch,
    InProgress,
    LeaseLost,
    ResultTooLarge,
    StoreError,
    TransactionOpen,
    journal,
    signals,
)
from django_idempotency.conf import InvalidStore, engine_for, store_for
from django_idempotency.engine.ending import RollBack
from django_idempotency.leases import Lease
from django_idempotency.records import State
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.memory import MemoryStore
from tests.claims import asked
from tests.services.processes import wait_until
from tests.unit.core.conftest import cancel, kept, levels, never, noted, run_in_loop
from tests.unit.core.steps import Boom, arun, run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("memory")]


def fail_after(*steps, error=Boom):
    """Take the steps in a first attempt, and fail."""

    def work(lease):
        for name, result in steps:
            lease.step(name, lambda result=result: result)
        raise error

    with pytest.raises(error):
        run(work)


# Once, over attempts.


def test_T1_a_noted_step_and_a_noted_call_run_once_over_failures(calls):
    def work(lease, fails):
        order = lease.step("order", calls("order", 17), "cart", cart=1)
        charge = lease.external("charge", calls("charge", "ch_1"), uncertain="repeat")
        if fails:
            raise Boom
        return [order, charge]

    with pytest.raises(Boom):
        run(partial(work, fails=True))
    assert (kept().state, noted()) == (State.FAILED, ["order", "charge"])
    assert run(partial(work, fails=False)).result == [17, "ch_1"]
    key = calls.made[1][1]
    assert calls.made == [("order", "cart"), ("charge", key)]
    assert run(never).replayed
    assert kept().steps is None


def test_T1_a_take_over_goes_on_behind_the_notes(clock, calls, caplog):
    def stall(lease):
        lease.step("a", calls("a", 1))
        clock.advance(61)
        with pytest.raises(ZeroDivisionError):
            lease.step("b", calls("b", ZeroDivisionError()))
        second = run(lambda lease: [lease.step("a", never), lease.step("b", calls("b", 2))])
        assert second.result == [1, 2]
        assert second.fencing_token > lease.fencing_token
        lease.step("c", calls("c", 3))

    with caplog.at_level("INFO", "django_idempotency"), pytest.raises(LeaseLost):
        run(stall, renew=False)
    assert [name for name, *_ in calls.made] == ["a", "b", "b", "c"]
    assert "goes on after its noted steps, 1 so far" in caplog.text


def test_T2_the_first_attempt_gets_what_each_later_one_gets(calls):
    result = {
        "total": Decimal("12.50"),
        "day": date(2026, 1, 2),
        "id": uuid.UUID(int=7),
        "raw": b"\x00",
        "pairs": ((1, 2),),
    }
    decoded = {**result, "pairs": [[1, 2]]}
    given = []

    def work(lease, fails):
        given.append(lease.step("a", lambda: result))
        given.append(lease.external("b", lambda key: result, uncertain="repeat"))
        assert not fails

    with pytest.raises(AssertionError):
        run(partial(work, fails=True))
    run(partial(work, fails=False))
    assert given == [decoded] * 4
    assert isinstance(given[0]["pairs"], list)


@pytest.mark.parametrize("result", [None, 0, "", [], {}, False])
def test_T3_a_falsy_result_is_noted_work_which_is_not_called(result):
    fail_after(("a", result))
    outcome = run(
        lambda lease: [
            lease.step("a", never),
            lease.external("b", lambda key: 1, uncertain="repeat"),
        ]
    )
    assert outcome.result == [result, 1]


# Names.


def test_T4_a_name_is_asked_for_once_before_anything_runs(calls):
    def work(lease):
        for _ in range(2):
            lease.step("rows", calls("rows"))

    with pytest.raises(RuntimeError, match=r"'rows' names another step.*rows-\{start\}"):
        run(work)
    with pytest.raises(RuntimeError):
        run(work)
    assert calls.made == [("rows",)]

    def mixed(lease):
        lease.step("a", calls("a"))
        lease.external("a", never, uncertain="repeat")

    with pytest.raises(RuntimeError):
        run(mixed, key="mixed")


def test_T4_a_name_that_runs_in_another_thread_is_taken(calls):
    entered, leave = threading.Event(), threading.Event()

    def slow():
        entered.set()
        assert leave.wait(30)
        return 1

    def work(lease):
        thread = threading.Thread(target=lambda: lease.step("a", slow))
        thread.start()
        assert entered.wait(30)
        with pytest.raises(RuntimeError, match="names another step"):
            lease.step("a", never)
        leave.set()
        thread.join(30)

    run(work)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (5, TypeError),
        (None, TypeError),
        ("", ValueError),
        ("x" * 101, ValueError),
        ("\ud800", ValueError),
        ("two\nlines", ValueError),
    ],
    ids=repr,
)
def test_a_name_has_1_to_100_characters(name, error):
    def work(lease):
        with pytest.raises(error):
            lease.step(name, never)
        with pytest.raises(error):
            lease.external(name, never, uncertain="repeat")
        assert lease.step("ä" * 100, lambda: 1) == 1

    run(work)


# What stands around.


@pytest.mark.parametrize("outer", ["step", "external"])
@pytest.mark.parametrize("inner", ["step", "external"])
def test_T5_no_step_is_inside_of_another(outer, inner):
    def call(lease, word, name, work):
        if word == "step":
            return lease.step(name, work)
        return lease.external(name, lambda key: work(), uncertain="repeat")

    def work(lease):
        with pytest.raises(RuntimeError, match=f"{inner}\\('b'\\) is inside"):
            call(lease, outer, "a", lambda: call(lease, inner, "b", never))
        return call(lease, inner, "b", lambda: 2)

    assert run(work).result == 2


def test_T5_another_call_inside_of_an_external_has_steps_of_its_own():
    def work(lease):
        inner = partial(run, lambda inner: inner.step("a", lambda: 1), key="inner")
        return lease.external("a", lambda key: inner().result, uncertain="repeat")

    assert run(work).result == 1


@pytest.mark.parametrize("alias", ["default", "other"])
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_T6_an_open_transaction_on_any_alias_is_refused(alias):
    def work(lease):
        with transaction.atomic(using=alias):
            with pytest.raises(TransactionOpen, match=r"step\(\) commits on its own"):
                lease.step("a", never)
            with pytest.raises(TransactionOpen, match=r"external\(\) commits on its own"):
                lease.external("b", never, uncertain="repeat")
        return lease.step("a", lambda: 1)

    assert run(work).result == 1


def test_R84_the_blocks_of_a_TestCase_do_not_count():
    around = transaction.atomic()
    around._from_testcase = True
    with around:
        assert run(lambda lease: lease.step("a", lambda: 1)).result == 1


def test_T7_what_raises_is_not_noted_and_may_be_asked_for_again(calls):
    def work(lease):
        for word in ("step", "external"):
            keywords = {"uncertain": "repeat"} if word == "external" else {}
            with pytest.raises(KeyError):
                getattr(lease, word)(word, calls(word, KeyError()), **keywords)
            assert getattr(lease, word)(word, calls(word, 1), **keywords) == 1
        raise Boom

    with pytest.raises(Boom):
        run(work)
    assert noted() == ["step", "external"]
    assert [name for name, *_ in calls.made] == ["step", "step", "external", "external"]


# Results.


def test_T8_what_is_not_JSON_and_what_is_too_large_is_not_noted():
    def work(lease):
        with pytest.raises(TypeError, match="cannot be kept as JSON"):
            lease.step("a", object)
        with pytest.raises(TypeError, match="neither awaited nor iterated"):
            lease.step("a", lambda: (x for x in [1]))
        with pytest.raises(ResultTooLarge, match="'a' is larger than max_steps_bytes"):
            lease.step("a", lambda: "x" * 71)
        for word in "ab":
            lease.step(word, lambda: "0123456789")
        for _ in range(2):
            with pytest.raises(ResultTooLarge, match=r"With 'c' the steps .* 81 bytes.* allows 70"):
                lease.step("c", lambda: "0123456789")
        again = "The call was made, and each retry will make it again"
        with pytest.raises(ResultTooLarge, match=f"'d' is larger .* {again}"):
            lease.external("d", lambda key: "x" * 71, uncertain="repeat")
        with pytest.raises(TypeError, match=f"Return JSON values: an id .* {again}"):
            lease.external("d", lambda key: object(), uncertain="repeat")
        raise Boom

    with pytest.raises(Boom):
        run(work, max_steps_bytes=70)
    assert noted() == ["a", "b"]
    with pytest.raises(ResultTooLarge):
        run(lambda lease: lease.step("c", lambda: "0123456789"), max_steps_bytes=70)


# The end.


def test_T10_a_completion_warns_of_the_notes_that_were_not_asked_for(caplog):
    fail_after(("old", "secret"), ("kept", 1), ("older", 1))
    assert levels(caplog) == []
    run(lambda lease: lease.step("kept", never))
    assert levels(caplog) == ["WARNING"]
    assert "has not asked for what was noted as 'old', 'older':" in caplog.text
    assert "secret" not in caplog.text


RELEASES = {
    "no complete": lambda attempt: None,
    "RollBack": lambda attempt: (_ for _ in ()).throw(RollBack("release", "answer")),
}


@pytest.mark.parametrize("end", RELEASES.values(), ids=RELEASES)
@pytest.mark.parametrize("has_step", ["here", "before", "no"])
def test_T11_what_would_be_released_after_a_step_is_failed(end, has_step):
    told = []
    signals.failed.connect(lambda **facts: told.append("failed"), weak=False, dispatch_uid=1)
    signals.released.connect(lambda **facts: told.append("released"), weak=False, dispatch_uid=1)
    try:
        if has_step == "before":
            fail_after(("a", 1))
            told.clear()
        with idempotency.attempt(key="k", scope="s", transaction="steps") as attempt:
            if has_step == "here":
                attempt.lease.step("a", lambda: 1)
            end(attempt)
    finally:
        signals.failed.disconnect(dispatch_uid=1)
        signals.released.disconnect(dispatch_uid=1)
    state, word = (State.RELEASED, "released") if has_step == "no" else (State.FAILED, "failed")
    assert (kept().state, told) == (state, [word])
    if has_step == "no":
        run(lambda lease: 1, payload="another")
    else:
        assert noted() == ["a"]
        with pytest.raises(FingerprintMismatch):
            run(never, payload="another")


def test_T11_a_failed_step_does_not_hold_the_key():
    with idempotency.attempt(key="k", scope="s", transaction="steps") as attempt:
        for word in ("step", "external"):
            keywords = {"uncertain": "repeat"} if word == "external" else {}
            with pytest.raises(TypeError):
                getattr(attempt.lease, word)("a", object if word == "step" else None, **keywords)
    assert kept().state is State.RELEASED


def test_a_step_after_the_attempt_has_ended_is_refused():
    leases = []
    run(leases.append)
    [lease] = leases
    with pytest.raises(RuntimeError, match=r"step\('a'\) comes too late"):
        lease.step("a", never)

    def late(lease):
        """A thread that ends after its attempt."""
        entered, leave = threading.Event(), threading.Event()
        told = []

        def call(key):
            entered.set()
            assert leave.wait(30)

        def outlive():
            try:
                lease.external("late", call, uncertain="repeat")
            except LeaseLost as error:
                told.append(str(error))

        thread = threading.Thread(target=outlive)
        thread.start()
        assert entered.wait(30)
        return leave, thread, told

    with idempotency.attempt(key="late", scope="s", transaction="steps") as attempt:
        leave, thread, told = late(attempt.lease)
        attempt.complete()
    leave.set()
    thread.join(30)
    assert told == ["The attempt has ended before 'late', which is not noted."]
    assert not attempt.lease.lost


# Calls.


def test_T13_the_key_of_a_call_is_that_of_the_request_in_each_attempt(calls):
    def work(lease):
        lease.external("charge", calls("charge", Boom()), uncertain="repeat")

    for _ in range(2):
        with pytest.raises(Boom):
            run(work)
    expected = run(lambda lease: lease.derive_key("charge")).result
    assert calls.made == [("charge", expected)] * 2


@pytest.mark.parametrize("uncertain", ["again", None, 1])
def test_T12_another_answer_to_uncertain_says_what_is_possible(uncertain):
    def work(lease):
        with pytest.raises(ValueError, match='must be "repeat", "refuse" or a function'):
            lease.external("a", never, uncertain=uncertain)
        with pytest.raises(TypeError):
            lease.external("a", never)
        raise KeyError

    with pytest.raises(KeyError):
        run(work)

    async def awork(lease):
        with pytest.raises(ValueError, match='must be "repeat", "refuse" or a function'):
            await lease.aexternal("a", never, uncertain=uncertain)
        return 1

    assert arun(awork).result == 1


# Coroutines.


def test_T14_calls_run_at_the_same_time_and_steps_one_after_the_other():
    running, most = [], []

    def step(name):
        running.append(name)
        most.append(len(running))
        running.remove(name)
        return name

    async def work(lease):
        met = asyncio.Barrier(3) if hasattr(asyncio, "Barrier") else None
        entered = []

        async def call(name, key):
            entered.append(name)
            if met is not None:
                await asyncio.wait_for(met.wait(), 30)
            while len(entered) < 3:
                await asyncio.sleep(0)
            return key

        keys = await asyncio.gather(
            *(lease.aexternal(n, partial(call, n), uncertain="repeat") for n in "abc")
        )
        assert keys == [lease.derive_key(n) for n in "abc"]
        return await asyncio.gather(*(lease.astep(f"s{n}", step, n) for n in range(5)))

    assert arun(work).result == [0, 1, 2, 3, 4]
    assert set(most) == {1}


def test_T14_one_that_fails_takes_no_other_along():
    async def work(lease, fails):
        async def call(name, key):
            if name == "b" and fails:
                raise ConnectionError
            return name

        told = await asyncio.gather(
            *(lease.aexternal(n, partial(call, n), uncertain="repeat") for n in "abc"),
            return_exceptions=True,
        )
        if fails:
            raise Boom
        return told

    with pytest.raises(Boom):
        arun(partial(work, fails=True))
    assert sorted(noted()) == ["a", "c"]
    assert arun(partial(work, fails=False)).result == ["a", "b", "c"]


def test_T14_what_is_awaited_and_what_is_called_must_be_that():
    async def coroutine(*args):
        pytest.fail("ran")

    async def work(lease):
        with pytest.raises(TypeError, match="coroutine function"):
            await lease.astep("a", coroutine)
        with pytest.raises(TypeError, match="returned no awaitable"):
            await lease.aexternal("b", lambda key: 1, uncertain="repeat")
        return 1

    assert arun(work).result == 1

    def sync_work(lease):
        with pytest.raises(TypeError, match=r"got a int in the place .* step.'a', function, arg"):
            lease.step("a", 5)
        with pytest.raises(TypeError, match=r"got a str in the place .* lambda key"):
            lease.external("a", "ch_1", uncertain="repeat")
        with pytest.raises(TypeError, match=r"must take \(key\), and <lambda>\(\) does not"):
            lease.external("a", lambda: "ch_1", uncertain="repeat")
        with pytest.raises(TypeError, match="coroutine function"):
            lease.step("a", coroutine)
        with pytest.raises(TypeError, match="coroutine function"):
            lease.external("a", coroutine, uncertain="repeat")

    run(sync_work, key="sync")


def test_T15_a_cancelled_step_is_awaited_and_noted():
    ended = []

    async def main():
        loop, entered, leave = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def step():
            loop.call_soon_threadsafe(entered.set)
            assert leave.wait(30)
            return 1

        async def work(lease):
            try:
                await lease.astep("a", step)
            finally:
                ended.append(noted())
            pytest.fail("went on")

        await cancel(work, entered.wait(), leave)

    run_in_loop(main)
    assert (kept().state, ended) == (State.FAILED, [["a"]])


@pytest.mark.parametrize("cancelled", ["the step", "another of its name"])
def test_T15_a_step_that_was_cancelled_may_be_asked_for_its_result(cancelled):
    """After a time-out, say; one whose result was given may not."""
    leave, ran = threading.Event(), []

    async def work(lease):
        def step():
            ran.append(1)
            assert leave.wait(30)
            return "result"

        first = asyncio.ensure_future(lease.astep("a", step))
        while not ran:
            await asyncio.sleep(0.001)
        tasks = {"the step": first}
        if cancelled != "the step":
            tasks[cancelled] = asyncio.ensure_future(lease.astep("a", never))
            await asyncio.sleep(0)
        tasks[cancelled].cancel()
        leave.set()
        with pytest.raises(asyncio.CancelledError):
            await tasks[cancelled]
        if cancelled == "the step":
            return await lease.astep("a", never)
        with pytest.raises(RuntimeError, match="names another step"):
            await lease.astep("a", never)
        return await first

    assert arun(work).result == "result"
    assert ran == [1]


def test_T15_a_cancelled_call_ends_and_is_not_noted():
    async def main():
        entered = asyncio.Event()

        async def call(key):
            entered.set()
            await asyncio.Event().wait()

        async def work(lease):
            await lease.aexternal("a", call, uncertain="repeat")

        task = asyncio.ensure_future(
            idempotency.arun(work, key="k", scope="s", transaction="steps")
        )
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_in_loop(main)
    assert (kept().state, kept().steps) == (State.FAILED, None)


def test_T15_a_cancellation_does_not_interrupt_the_note(memory, monkeypatch):
    note, entered, leave, ended = memory.note, threading.Event(), threading.Event(), []

    def slow(*args, **kwargs):
        entered.set()
        assert leave.wait(30)
        note(*args, **kwargs)

    monkeypatch.setattr(memory, "note", slow)

    async def main():
        async def call(key):
            return 1

        async def work(lease):
            try:
                await lease.aexternal("a", call, uncertain="repeat")
            finally:
                ended.append(noted())
            pytest.fail("went on")

        await cancel(work, asyncio.to_thread(entered.wait, 30), leave)

    run_in_loop(main)
    assert ended == [["a"]]


def test_T5_T6_of_coroutines():
    async def work(lease):
        async def inside(key):
            with pytest.raises(RuntimeError, match=r"step\('b'\) is inside"):
                await lease.astep("b", never)
            return 1

        assert await lease.aexternal("a", inside, uncertain="repeat") == 1

        def within():
            with transaction.atomic(), pytest.raises(TransactionOpen):
                async_to_sync(lease.aexternal)("c", inside, uncertain="repeat")

        await sync_to_async(within)()
        return 1

    assert arun(work).result == 1


def test_T5_what_a_call_has_started_may_ask_for_a_step_once_the_call_has_ended():
    async def work(lease):
        ended = asyncio.Event()

        async def start(key):
            async def later():
                with pytest.raises(RuntimeError, match="is inside"):
                    await lease.astep("b", never)
                begun.set()
                await ended.wait()
                return await lease.astep("b", lambda: 2)

            begun = asyncio.Event()
            task = asyncio.create_task(later())
            await begun.wait()
            tasks.append(task)
            return 1

        tasks = []
        await lease.aexternal("a", start, uncertain="repeat")
        ended.set()
        return await tasks[0]

    assert arun(work).result == 2


# The lease.


class Renewer:
    """Notes for which leases it is to care, in place of a renewer."""

    def __init__(self):
        self.added = []

    def add(self, store, lease, *, wanted=None):
        self.added.append(lease)

    def remove(self, lease):
        self.added.append(None)


def test_T16_each_note_is_a_new_beginning_for_the_renewer(monkeypatch):
    renewer = Renewer()
    monkeypatch.setattr(engine_for(), "renewer", renewer)

    def work(lease):
        assert renewer.added == [lease]
        lease.step("a", lambda: 1)
        lease.external("b", lambda key: 1, uncertain="repeat")
        with pytest.raises(Boom):
            lease.step("c", Mock(side_effect=Boom))
        assert renewer.added == [lease] * 3

    run(work)
    assert renewer.added[3:] == [None]
    renewer.added.clear()
    run(lambda lease: lease.step("a", lambda: 1), key="not renewed", renew=False)
    assert renewer.added == [None]


def test_T16_max_duration_counts_from_the_last_note(caplog):
    """Work that goes on from step to step is renewed, and work that hangs is not."""

    def is_told():
        return "is renewed no longer: its max_duration is over" in caplog.text

    def work(lease):
        for number in range(4):
            lease.step(f"{number}", lambda: time.sleep(0.5))
        noted_at, told_before = time.monotonic(), is_told()
        wait_until(is_told, seconds=60, what="the renewal to end")
        return [told_before, time.monotonic() - noted_at > 1.4]

    assert run(work, max_duration=1.5).result == [False, True]


def test_a_note_extends_the_lease_to_what_the_policy_or_the_deadline_leaves(memory, clock):
    def work(lease):
        clock.advance(3)
        lease.step("a", lambda: 1)
        record = memory.get(lease.record_id)
        return (record.lease_until - record.now).total_seconds()

    assert run(work, lease=20).result == 20
    assert run(work, key="deadline", deadline=lambda: 7).result == 7


# The modes.


@pytest.mark.parametrize("mode", ["joined", "single", "separate"])
def test_T17_other_modes_have_no_steps_and_say_so(settings, mode):
    settings.IDEMPOTENCY = {"default": {"TRANSACTION": mode}}

    def work(lease):
        for call in (lease.step, idempotency.step):
            with pytest.raises(RuntimeError, match=f'needs transaction="steps".*{mode}'):
                call("a", never)
        with pytest.raises(RuntimeError, match=f"external.*{mode}"):
            idempotency.external("a", never, uncertain="repeat")

    idempotency.run(work, key="k", scope="s")

    async def awork(lease):
        with pytest.raises(RuntimeError, match=f"astep.*{mode}"):
            await idempotency.astep("a", never)
        with pytest.raises(RuntimeError, match=f"aexternal.*{mode}"):
            await idempotency.aexternal("a", never, uncertain="repeat")

    run_in_loop(lambda: idempotency.arun(awork, key="a", scope="s"))


def test_T17_there_are_no_steps_outside_of_work_and_without_an_attempt():
    with pytest.raises(RuntimeError, match=r"step\(\) belongs inside idempotent work"):
        idempotency.step("a", never)
    with pytest.raises(RuntimeError, match=r"external\(\) belongs inside"):
        idempotency.external("a", never, uncertain="repeat")
    lease = store_for().claim(asked(steps=True))
    assert isinstance(lease, Lease)
    with pytest.raises(RuntimeError, match="No attempt holds this lease"):
        lease.step("a", never)


def test_T17_steps_are_refused_within_the_callers_transaction():
    with transaction.atomic(), pytest.raises(TransactionOpen, match=r"'steps'.* here\. Call outs"):
        run(never)


def test_T17_no_alias_has_steps(settings):
    settings.IDEMPOTENCY = {"default": {"TRANSACTION": "steps"}}
    with pytest.raises(InvalidStore, match="cannot be 'steps', which takes the transaction from"):
        store_for()


def test_T17_a_store_that_cannot_note_is_refused(monkeypatch):
    assert BaseStore.supports_steps is False
    monkeypatch.setattr(MemoryStore, "supports_steps", False)
    with pytest.raises(ValueError, match="needs a store that can note them; MemoryStore cannot"):
        run(never)
    with pytest.raises(NotImplementedError):
        BaseStore().note(None, b"", duration=timedelta(1), held=False)


def test_T8_more_bytes_than_a_record_of_the_store_holds_are_refused_before_anything_runs(
    monkeypatch,
):
    """Or else a call is made, and its answer does not fit: each retry makes it again."""
    monkeypatch.setattr(MemoryStore, "steps_bytes", 100)
    with pytest.raises(
        ValueError, match="max_steps_bytes=101 is more than a record of MemoryStore"
    ):
        run(never, max_steps_bytes=101)
    assert run(lambda lease: 1, max_steps_bytes=100).result == 1
    assert idempotency.run(lambda lease: 1, key="k", scope="s", max_steps_bytes=101).result == 1


CALLERS = {
    "run": lambda work: run(work).result,
    "arun": lambda work: arun(sync_to_async(work)).result,
    "function": lambda work: idempotency.idempotent_function(
        key="key", scope="s", transaction="steps"
    )(lambda key: work(idempotency.current()))("k"),
}


@pytest.mark.parametrize("caller", CALLERS.values(), ids=CALLERS)
def test_T17_each_call_takes_steps(caller, calls):
    def work(lease):
        idempotency.step("a", calls("a", 1))
        assert lease.request.transaction == "separate"
        assert lease.request.steps
        if len(calls.made) == 1:
            calls.made.append("fails")
            raise KeyError
        return 2

    with pytest.raises(KeyError):
        caller(work)
    assert caller(work) == 2
    assert calls.made == [("a",), "fails"]


def test_S10_code_without_steps_leaves_a_half_done_record_to_an_operator():
    fail_after(("a", 1))
    with pytest.raises(InProgress, match=r'Put transaction="steps" back') as met:
        idempotency.run(never, key="k", scope="s")
    assert met.value.stale


@pytest.mark.parametrize("ends", ["dies", "fails"])
def test_R71_S4_a_record_that_waits_for_an_operator_expires_after_no_note(clock, ends):
    def work(lease):
        assert kept().expires_at is None
        lease.step("a", lambda: 1)
        lease.external("b", lambda key: 1, uncertain="repeat")
        assert kept().expires_at is None
        if ends == "dies":
            clock.advance(timedelta(days=400).total_seconds())
            with pytest.raises(InProgress, match="an operator has to decide") as met:
                Context().run(run, never, on_stale="refuse")  # as another process does
            assert met.value.stale
        raise Boom

    with pytest.raises(Boom):
        run(work, on_stale="refuse", renew=False)
    assert kept().expires_at is not None


# What the store gives back, and what it does not say.

KEYS = ["0" * 43, "1" * 43]


def test_T18_each_result_is_sealed_under_its_record_and_its_name(memory):
    def two(lease):
        lease.step("a", lambda: "secret-a")
        lease.step("b", lambda: "secret-b")
        raise Boom

    for key in ("k", "other"):
        with pytest.raises(Boom):
            run(two, key=key, encryption_keys=KEYS[:1])
    assert b"secret" not in kept().steps
    a, b = journal.read(kept().steps).results.values()
    [foreign, _] = journal.read(kept("other").steps).results.values()
    changed = {
        "swapped": journal.entry("a", b) + journal.entry("b", a),
        "moved": journal.entry("a", foreign) + journal.entry("b", b),
        "altered": journal.entry("a", a) + journal.entry("b", b[:-1] + bytes([b[-1] ^ 1])),
    }
    whole = kept().steps
    for steps in changed.values():
        put(memory, steps)
        with pytest.raises(StoreError, match="damaged"):
            run(never, encryption_keys=KEYS[:1])
        assert kept().state is State.FAILED
    put(memory, whole)
    with pytest.raises(StoreError, match="put the key back"):
        run(never)
    rotated = run(lambda lease: [lease.step(n, never) for n in "ab"], encryption_keys=KEYS[::-1])
    assert rotated.result == ["secret-a", "secret-b"]


def put(memory, steps):
    """Give the record of the key "k" a journal."""
    record = replace(kept(), steps=steps)
    with memory.exclusively() as records:
        records.put(record)


def test_T7_a_step_of_a_coroutine_that_raises_StopIteration_ends(calls):
    async def work(lease):
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            await lease.astep("a", calls("a", StopIteration()))
        return await lease.astep("a", calls("a", 1))

    assert arun(work).result == 1


def test_S16_nothing_runs_for_a_damaged_journal(memory, caplog):
    fail_after(("a", 1))
    put(memory, kept().steps[:-1])
    with pytest.raises(StoreError, match="damaged"):
        run(never)
    assert (kept().state, kept().held) == (State.FAILED, True)  # it may tell of an uncertain call
    assert "store unavailable" in caplog.text


def test_P9_a_note_whose_answer_is_lost_is_decided_by_the_next_claim(memory, monkeypatch, calls):
    """It is in no memory of this attempt, though it has arrived; and holds the key (T11)."""
    note = memory.note

    def lose(*args, **kwargs):
        note(*args, **kwargs)
        raise StoreError("no answer", unreachable=True)

    def work(lease):
        for word, keywords in (("step", {}), ("external", {"uncertain": "repeat"})):
            with pytest.raises(StoreError, match="no answer"):
                getattr(lease, word)(word, calls(word, 1), **keywords)
            with pytest.raises(StoreError, match=f"Whether '{word}' was noted is not known"):
                getattr(lease, word)(word, never, **keywords)
        raise RollBack("release", "refused")

    with monkeypatch.context() as patched:
        patched.setattr(memory, "note", lose)
        assert run(work).result == "refused"
    assert (kept().state, noted()) == (State.FAILED, ["step", "external"])
    again = run(
        lambda lease: [
            lease.step("step", never),
            lease.external("external", never, uncertain="repeat"),
        ]
    )
    assert again.result == [1, 1]


def test_P12_a_note_that_does_not_arrive_is_made_by_the_next_attempt(memory, monkeypatch, calls):
    with monkeypatch.context() as patched:
        patched.setattr(memory, "note", Mock(side_effect=StoreError("down", unreachable=True)))
        with pytest.raises(StoreError, match="down"):
            run(lambda lease: lease.external("a", calls("a", 1), uncertain="repeat"))
    assert run(lambda lease: lease.external("a", calls("a", 2), uncertain="repeat")).result == 2
    assert calls.made[0] == calls.made[1]


def test_P10_a_refused_note_keeps_nothing_and_the_next_step_does_not_begin(clock, calls):
    def stall(lease):
        clock.advance(61)
        run(lambda second: second.step("a", lambda: "second"))
        with pytest.raises(LeaseLost):
            lease.external("a", calls("a", "first"), uncertain="repeat")
        assert lease.lost
        with pytest.raises(LeaseLost):
            lease.step("b", never)
        with pytest.raises(LeaseLost):
            lease.step("a", never)
        return "first"

    with pytest.raises(LeaseLost):
        run(stall, renew=False)
    assert run(never).result == "second"


def test_S17_steps_in_threads_have_one_attempt(calls):
    def work(lease):
        threads = [
            threading.Thread(target=lease.step, args=[f"s{n}", calls(f"s{n}", n)]) for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        raise Boom

    with pytest.raises(Boom):
        run(work)
    assert sorted(noted()) == [f"s{n}" for n in range(8)]
    result = run(lambda lease: [lease.step(f"s{n}", never) for n in range(8)]).result
    assert result == list(range(8))


def test_the_signal_of_a_claim_has_the_number_of_noted_steps():
    told = []
    signals.claimed.connect(lambda steps, **facts: told.append(steps), weak=False, dispatch_uid=1)
    try:
        fail_after(("a", 1), ("b", 1))
        run(lambda lease: [lease.step(n, never) for n in "ab"])
        idempotency.run(lambda lease: 1, key="plain", scope="s")
    finally:
        signals.claimed.disconnect(dispatch_uid=1)
    assert told == [0, 2, 0]
