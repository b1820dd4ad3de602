"""The poller: one look for all who wait, on a store that says what it is asked (R51)."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest

from django_idempotency import FingerprintMismatch, InProgress, StoreError
from django_idempotency.claims import placeholder
from django_idempotency.engine import Engine, waiting
from django_idempotency.engine.threads import StoreThreads
from django_idempotency.engine.waiting import Poller, Waiter
from django_idempotency.records import State
from django_idempotency.stores.memory import MemoryStore
from tests.claims import DAY, OTHER_FINGERPRINT, asked, lost, operation, won
from tests.services.processes import wait_until

PATIENCE = 60
RESULT = b"\x01\x00\x04json" + b'"done"'


class Watched(MemoryStore):
    """A store that counts looks and claims, and fails or hangs when it is told to."""

    error: Exception | None = None

    def __init__(self):
        super().__init__()
        self.looks, self.claims, self.idled = [], 0, threading.Event()
        self.free = threading.Event()
        self.free.set()

    def claim(self, request):
        self.claims += 1
        return super().claim(request)

    def peek(self, record_ids):
        self.looks.append(set(record_ids))
        self.free.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return super().peek(record_ids)

    def idle(self):
        self.idled.set()


@pytest.fixture
def store():
    return Watched()


@pytest.fixture
def poller(monkeypatch):
    """A poller of the test's own, which ends soon after its last waiter is gone."""
    monkeypatch.setattr(waiting, "_IDLE", 0.1)
    poller = Poller()
    yield poller
    wait_until(lambda: not poller._waiters, seconds=PATIENCE, what="the end of the poller")


@pytest.fixture
def engine(store, poller):
    return Engine(store, poller=poller)


def waiting_for(engine, key="key", seconds=PATIENCE, **fields):
    """A coroutine that waits for `key`; it returns a result, or raises InProgress."""

    async def work(lease):
        return f"again {key}"

    given = operation(key, **fields)
    object.__setattr__(given, "wait", timedelta(seconds=seconds))
    return asyncio.ensure_future(engine.arun(given, work))


def number_of(poller):
    return sum(map(len, poller._waiters.values()))


async def until(condition):
    await asyncio.to_thread(wait_until, condition, seconds=PATIENCE, what="what is waited for")


def test_one_look_serves_all_and_its_record_answers_them(store, poller, engine):
    """Two hundred waiters on ten keys: no claim but the first of each."""
    leases = {f"key {n}": won(store.claim(asked(f"key {n}"))) for n in range(10)}

    async def main():
        waiters = [waiting_for(engine, key) for key in leases for _ in range(20)]
        await until(lambda: number_of(poller) == 200)
        looks = len(store.looks)
        await until(lambda: len(store.looks) > looks + 1)
        assert store.looks[-1] == {lease.record_id for lease in leases.values()}
        assert list(poller._waiters) == [store]  # each has one thread
        engine._threads._executor.shutdown()  # those of the claims, which no answer needs
        for lease in leases.values():
            store.complete(lease, RESULT, retention=DAY)
        return await asyncio.gather(*waiters)

    outcomes = asyncio.run(main())
    assert {(outcome.result, outcome.replayed) for outcome in outcomes} == {("done", True)}
    assert store.claims == 210
    assert store.idled.wait(PATIENCE)


def test_a_caller_that_waits_in_its_own_thread_needs_no_claim_for_the_answer(store, poller, engine):
    lease, given = won(store.claim(asked())), operation()
    object.__setattr__(given, "wait", timedelta(seconds=PATIENCE))
    with ThreadPoolExecutor(1) as threads:
        waiter = threads.submit(engine.run, given, pytest.fail)
        wait_until(lambda: number_of(poller) == 1, seconds=PATIENCE, what="the waiter")
        store.complete(lease, RESULT, retention=DAY)
        assert waiter.result(PATIENCE).replayed
    assert store.claims == 2


@pytest.mark.parametrize("ending", ["failed", "released", "gone", "lapsed"])
def test_R52_where_one_alone_can_win_one_is_woken(store, poller, engine, ending):
    lease = won(store.claim(asked()))

    async def main():
        waiters = [waiting_for(engine) for _ in range(20)]
        await until(lambda: number_of(poller) == 20)
        looks = len(store.looks)
        match ending:
            case "failed":
                store.fail(lease, "builtins.OSError")
            case "released":
                store.release(lease)
            case "gone":
                del store._records[lease.record_id]
            case "lapsed":
                store._clock = lambda: datetime.now(timezone.utc) + timedelta(minutes=2)
        return await asyncio.gather(*waiters), looks

    outcomes, looks = asyncio.run(main())
    assert sorted(outcome.replayed for outcome in outcomes) == [False] + [True] * 19
    assert {outcome.result for outcome in outcomes} == {"again key"}
    # A look wakes one: more than a few only where a claim outlasts the pause before the next.
    assert store.claims <= 1 + 20 + len(store.looks) - looks


def test_R71_attempt_that_is_waited_for_becomes_stale_for_all(store, poller, engine):
    won(store.claim(asked(on_stale="refuse")))

    async def main():
        waiters = [waiting_for(engine, on_stale="refuse") for _ in range(5)]
        await until(lambda: number_of(poller) == 5)
        store._clock = lambda: datetime.now(timezone.utc) + timedelta(minutes=2)
        return await asyncio.gather(*waiters, return_exceptions=True)

    assert [error.stale for error in asyncio.run(main())] == [True] * 5
    assert store.claims == 1 + 5


def test_result_that_the_store_has_left_out_is_fetched_by_a_claim(store, poller, engine):
    lease = won(store.claim(asked()))
    look = store.peek
    store.peek = lambda ids: {x: replace(record, result=None) for x, record in look(ids).items()}

    async def main():
        waiters = [waiting_for(engine) for _ in range(3)]
        await until(lambda: number_of(poller) == 3)
        store.complete(lease, RESULT, retention=DAY)
        return await asyncio.gather(*waiters)

    assert [outcome.result for outcome in asyncio.run(main())] == ["done"] * 3


def test_another_attempt_of_another_request_is_told_at_once(store, poller, engine):
    lease = won(store.claim(asked()))

    async def main():
        waiter = waiting_for(engine)
        await until(lambda: number_of(poller) == 1)
        store.release(lease)
        won(store.claim(asked(fingerprints=(OTHER_FINGERPRINT,))))
        with pytest.raises(FingerprintMismatch):
            await asyncio.wait_for(waiter, PATIENCE / 2)

    asyncio.run(main())


def test_nothing_waits_past_its_own_wait_or_is_looked_at_then(store, poller, engine):
    """Even while a look hangs; who has been cancelled is not looked at either."""
    won(store.claim(asked()))

    async def main():
        store.free.clear()
        cancelled = waiting_for(engine)
        await until(lambda: store.looks)
        cancelled.cancel()
        short, long = waiting_for(engine, seconds=0.1), waiting_for(engine, seconds=0.2)
        answers = await asyncio.gather(short, long, cancelled, return_exceptions=True)
        assert [type(answer) for answer in answers[:2]] == [InProgress, InProgress]
        assert cancelled.cancelled()
        assert number_of(poller) == 0
        store.free.set()

    asyncio.run(main())
    assert len(store.looks) == 1


def test_Retry_After_of_one_who_waited_in_vain_is_that_of_the_last_look(store, poller, engine):
    won(store.claim(asked()))

    async def main():
        waiter = waiting_for(engine, seconds=2)
        await until(lambda: number_of(poller) == 1)
        claimed, store._clock = store._clock, lambda: claimed() + timedelta(seconds=30)
        return await asyncio.gather(waiter, return_exceptions=True)

    [error] = asyncio.run(main())
    assert error.record.running_for >= 30
    assert (error.record.key, store.claims) == ("key", 2)


@pytest.mark.parametrize("error", [StoreError("down"), ZeroDivisionError("a defect")])
def test_failed_look_wakes_all_and_each_claims_for_itself(
    store, poller, engine, caplog, monkeypatch, error
):
    monkeypatch.setattr(waiting, "_IDLE", 2)  # the thread stays while all of them claim again
    lease = won(store.claim(asked()))

    async def main():
        store.error = error
        waiters = [waiting_for(engine) for _ in range(5)]
        await until(lambda: store.claims >= 1 + 3 * 5)
        store.complete(lease, RESULT, retention=DAY)
        return await asyncio.gather(*waiters)

    assert {outcome.result for outcome in asyncio.run(main())} == {"done"}
    lines = [it for it in caplog.records if "claim again and again" in it.message]
    assert {line.levelname for line in lines} == {"WARNING"}
    assert len(lines) < len(store.looks)  # one of each thread, and a new one is rare


def test_server_that_cannot_be_connected_to_lets_nobody_wait_for_a_look(store, poller):
    won(store.claim(asked()))
    waiter = Waiter(asked().record_id, timedelta(seconds=5))
    assert waiter.goes_on(lost(store.claim(asked())))
    store.fresh_connection = lambda: _raise(StoreError("down"))
    assert poller.wait(store, waiter) is None
    assert waiter.left


def _raise(error):
    raise error


@pytest.fixture
def poll(store, poller, monkeypatch):
    """`poll(*looks)`: look as often, with what each look returns or raises."""

    def poll(*looks):
        left = list(looks)

        def look(store, asking):
            look = left.pop(0)
            return _raise(look) if isinstance(look, Exception) else look

        with monkeypatch.context() as patched:
            patched.setattr(poller, "_look", look)
            patched.setattr(poller, "_due", lambda store, connected: [] if left else None)
            patched.setitem(poller._waiters, store, set())
            poller._poll(store)

    return poll


def test_each_outage_is_told_once(poll, caplog):
    """One ends with a look that reads; one for which there was nobody left says nothing."""
    down, defect = StoreError("the server is down"), ZeroDivisionError("a secret")
    poll(False, down, False, down, True, defect, defect)
    words = [message.rpartition(": ")[2] for message in caplog.messages]
    assert words == ["the server is down", "ZeroDivisionError"]


def test_connection_that_cannot_be_closed_ends_no_looks(store, poll, caplog):
    store.idle = lambda: _raise(OSError("gone"))
    poll(True, True)
    assert caplog.text.count("could not be closed") == 2


def test_one_connection_is_used_for_5_seconds(store, poller, monkeypatch):
    """As long as there are waiters: a proxy may have dropped it, and nothing would tell."""
    won(store.claim(asked()))
    waiter, now = Waiter(asked().record_id, timedelta(seconds=PATIENCE)), 0.0
    assert waiter.goes_on(lost(store.claim(asked())))

    def due(store, connected):
        nonlocal now
        now += 1
        return [waiter] if now < 10 else []

    with monkeypatch.context() as patched:
        patched.setattr(waiting.time, "monotonic", lambda: now)
        patched.setattr(poller, "_due", due)
        patched.setitem(poller._waiters, store, {waiter})
        assert poller._look(store, [])
    assert (now, len(store.looks)) == (5.0, 5)


def test_store_that_fails_is_met_by_each_waiter_itself(store, poller, engine):
    won(store.claim(asked()))

    async def main():
        waiters = [waiting_for(engine) for _ in range(5)]
        await until(lambda: number_of(poller) == 5)
        store.error = StoreError("down")
        store.exclusively = lambda: (_ for _ in ()).throw(StoreError("down"))
        return await asyncio.gather(*waiters, return_exceptions=True)

    errors = asyncio.run(main())
    assert [type(error) for error in errors] == [StoreError] * 5
    assert not any(error.at_claim for error in errors)


def test_R51_new_waiter_wakes_a_poller_that_is_idle(store, poller, monkeypatch):
    """Its look comes when it is due, and not when the thread would have ended."""
    monkeypatch.setattr(waiting, "_IDLE", 10)

    def wait(key):
        lease = won(store.claim(asked(key)))
        waiter = Waiter(lease.record_id, timedelta(seconds=PATIENCE))
        assert waiter.goes_on(lost(store.claim(asked(key))))
        store.complete(lease, RESULT, retention=DAY)
        assert poller.wait(store, waiter).result == RESULT

    def ends():
        """When the idle poller would look by itself; 0 while it is at work."""
        with poller._lock:
            return 0 if poller._waiters[store] else poller._wakes_at.get(store, 0)

    wait("first")
    wait_until(lambda: ends() > time.monotonic() + 5, seconds=PATIENCE, what="an idle poller")
    by_itself = ends()
    monkeypatch.setattr(waiting, "_IDLE", 0.1)  # from the end of this wait on
    wait("second")
    assert time.monotonic() < by_itself


def test_stores_do_not_wait_for_each_other(store, poller, engine):
    hanging, other = store, Watched()
    won(hanging.claim(asked()))
    lease = won(other.claim(asked()))

    async def main():
        hanging.free.clear()
        stuck = waiting_for(engine)
        await until(lambda: hanging.looks)
        waiter = waiting_for(Engine(other, poller=poller))
        await until(lambda: other.looks)
        other.complete(lease, RESULT, retention=DAY)
        assert (await waiter).replayed
        assert not stuck.done()
        stuck.cancel()
        hanging.free.set()

    asyncio.run(main())


def test_without_a_thread_each_looks_for_itself(store, poller, engine, monkeypatch, caplog):
    start = waiting.threading.Thread.start

    def refuse(thread):
        if thread.name == "django-idempotency-poller":
            raise RuntimeError("can't start new thread")
        start(thread)

    lease = won(store.claim(asked()))
    monkeypatch.setattr(waiting.threading.Thread, "start", refuse)

    async def main():
        waiter = waiting_for(engine)
        await asyncio.sleep(0)
        while store.claims < 4:
            await asyncio.sleep(0)
        store.complete(lease, RESULT, retention=DAY)
        return await waiter

    with pytest.MonkeyPatch.context() as inline:
        inline.setattr(StoreThreads, "call", lambda threads, call, *given: _now(call(*given)))
        assert asyncio.run(main()).replayed
    assert caplog.text.count("no thread started") == 1


async def _now(value):
    return value


def test_R52_what_a_waiter_may_claim(store):
    """Not what an attempt after the one that it has met holds, nor an answer."""
    won(store.claim(asked()))
    met = lost(store.claim(asked()))
    waiter = Waiter(met.record_id, timedelta(seconds=60))
    assert waiter.goes_on(met)
    completed = replace(met, state=State.COMPLETED, lease_until=None, expires_at=met.now + DAY)
    for record, may_claim in (
        (None, True),
        (replace(met, epoch=met.epoch + 1), False),
        (replace(met, now=met.now + DAY), True),
        (completed, False),
        (replace(completed, now=met.now + DAY), True),
        (replace(completed, state=State.FAILED), True),
        (replace(completed, state=State.RELEASED), True),
    ):
        assert (record, waiter.is_unchanged(record)) == (record, False)
        assert (record, waiter.may_claim(record)) == (record, may_claim)
    assert waiter.is_unchanged(met)


@pytest.fixture
def tell(store, poller, monkeypatch):
    """
    `tell(record, met)`: tell four waiters what was read; return them, and which are woken.

    The first of them has gone meanwhile, and the loop of the third was closed.
    """

    def tell(record, met):
        waiters, woken = [Waiter(met.record_id, timedelta(seconds=60)) for _ in range(4)], []
        for number, waiter in enumerate(waiters):
            waiter.met, waiter.wake = met, partial(woken.append, number)
        waiters[2].wake = lambda: _raise(RuntimeError("Event loop is closed"))
        with monkeypatch.context() as patched:
            patched.setitem(poller._waiters, store, set(waiters[1:]))
            poller._tell(store, waiters, {} if record is None else {met.record_id: record})
        return waiters, woken

    return tell


def test_one_who_has_gone_keeps_nobody_from_being_woken(store, tell):
    """Neither the one who may claim, nor those who have an answer."""
    won(store.claim(asked()))
    met = lost(store.claim(asked()))
    assert tell(None, met)[1] == [1]
    assert tell(replace(met, epoch=met.epoch + 1), met)[1] == [1, 3]


def test_what_the_claim_knows_of_a_record_is_not_lost_for_a_placeholder(tell):
    met = placeholder(asked(), datetime.now(timezone.utc))
    read = replace(met, scope="", key="")
    waiters, woken = tell(read, met)
    assert woken == []
    assert all(waiter.seen is met for waiter in waiters)


def test_looks_come_less_often_as_a_wait_lasts(monkeypatch):
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now)
    now = 0.0
    waiter = Waiter(None, timedelta(seconds=60))
    for now, pause in ((0.0, 0.02), (0.05, 0.02), (0.5, 0.1), (5.0, 0.2)):
        assert (now, waiter.pause()) == (now, pause)


@pytest.mark.parametrize("way", ["thread", "coroutine"])
@pytest.mark.parametrize("why", ["not met", "within a transaction"])
def test_R98_nobody_looks_for_what_nobody_can_find(store, poller, way, why):
    """
    Nothing says where a record is that no claim has met, in a store with several places.

    No other connection sees what a transaction has not committed.
    """
    waiter = Waiter(asked().record_id, timedelta(milliseconds=50))
    store.in_transaction = lambda: why == "within a transaction"
    if store.in_transaction():
        won(store.claim(asked()))
        assert waiter.goes_on(lost(store.claim(asked())))
    if way == "thread":
        assert poller.wait(store, waiter) is None
    else:
        assert asyncio.run(poller.await_(store, waiter, alone=store.in_transaction())) is None
    assert (store.looks, poller._waiters) == ([], {})


def test_R98_a_place_that_cannot_be_read_wakes_nobody_elsewhere(poller):
    """As the schema of a tenant that has just been dropped."""

    class Places(Watched):
        place = None

        @contextmanager
        def at(self, place):
            self.place = place
            yield

        def peek(self, record_ids):
            if self.place == "dropped":
                raise StoreError
            return super().peek(record_ids)

    store = Places()
    lease = won(store.claim(asked()))
    met = lost(store.claim(asked()))
    with ThreadPoolExecutor(2) as threads:
        answers = {}
        for place in ("dropped", "there"):
            waiter = Waiter(met.record_id, timedelta(seconds=PATIENCE))
            waiter.place = place
            assert waiter.goes_on(met)
            answers[place] = threads.submit(poller.wait, store, waiter)
        assert answers["dropped"].result(PATIENCE) is None
        looks = len(store.looks)
        wait_until(lambda: len(store.looks) > looks + 1, seconds=PATIENCE, what="more looks")
        assert not answers["there"].done()
        store.complete(lease, RESULT, retention=DAY)
        assert answers["there"].result(PATIENCE).result == RESULT
