"""Renewal: the keeper's thread, on a store that records what it is asked (R69)."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from unittest.mock import Mock

import pytest
from django.db import transaction

from django_idempotency import InProgress, LeaseLost, StoreError
from django_idempotency.engine import Engine, renewal
from django_idempotency.engine.ending import Verdict
from django_idempotency.engine.operation import OpenTransactions
from django_idempotency.engine.renewal import LeaseRenewer
from django_idempotency.keys import short
from django_idempotency.leases import Lease
from django_idempotency.records import State
from django_idempotency.stores.memory import MemoryStore
from django_idempotency.testing import FakeClock
from tests.claims import asked, operation
from tests.services.processes import wait_until

SECONDS = 60.0


class Renewals(MemoryStore):
    """A store that says what it was told to say of leases, unless it is told of none."""

    lost: frozenset | None = frozenset()
    error: Exception | None = None

    def __init__(self):
        super().__init__()
        self.calls = []
        self.called = threading.Condition()
        self.entered, self.idled, self.free = (threading.Event() for _ in range(3))
        self.free.set()

    def get(self, record_id):
        return super().get(record_id) if self.lost is None else object()

    def renew(self, leases, duration):
        self.entered.set()
        self.free.wait(SECONDS)
        held = super().renew(leases, duration) if self.lost is None else set(leases) - self.lost
        with self.called:
            self.calls.append((set(leases), duration, time.monotonic()))
            self.called.notify_all()
        if self.error is not None:
            raise self.error
        return held

    def idle(self):
        self.idled.set()
        if self.error is not None:
            raise self.error

    def wait_for_calls(self, number):
        with self.called:
            assert self.called.wait_for(lambda: len(self.calls) >= number, SECONDS)

    def next_calls(self, number):
        """Wait for calls that begin from now on; return their leases."""
        known = len(self.calls) + 1  # one may be under way
        self.wait_for_calls(known + number)
        return [leases for leases, *_ in self.calls[known:]]


@pytest.fixture
def store():
    return Renewals()


@pytest.fixture
def keeper(monkeypatch):
    """A keeper of the test's own, which ends soon after its last lease is gone."""
    monkeypatch.setattr(renewal, "_IDLE", 0.02)
    keeper = LeaseRenewer()
    yield keeper
    monkeypatch.setattr(renewal, "_IDLE", 0)
    with keeper._changed:
        keeper._kept.clear()
        keeper._changed.notify_all()
        threads = list(keeper._threads.values())
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()


@pytest.fixture
def engine(keeper):
    store = Renewals()
    store.lost = None
    return Engine(store, renewer=keeper)


def make_lease(seconds=0.015, *, max_duration=3600.0, key="k"):
    durations = {"lease": seconds, "max_duration": max_duration}
    request = asked(key, **{name: timedelta(seconds=it) for name, it in durations.items()})
    return Lease(request, 1)


def test_R69_from_a_third_on_and_again_and_again_for_the_whole_lease(keeper, store):
    """Not before it is due, a third of the lease after the last; two durations are not mixed."""
    lease, long, other = make_lease(0.15), make_lease(3600, key="long"), make_lease(key="other")
    added = time.monotonic()
    for it in (lease, long):
        keeper.add(store, it)
    assert added + 1200 <= keeper._kept[long].due <= time.monotonic() + 1200
    store.wait_for_calls(2)
    (*_, first), (*_, second) = store.calls[:2]
    assert (first - added > 0.0499, second - added > 0.0999) == (True, True)
    keeper.add(store, other)
    store.next_calls(6)
    found = {(*leases, duration.total_seconds()) for leases, duration, _ in store.calls}
    assert found == {(lease, 0.15), (other, 0.015)}


def test_a_shorter_lease_wakes_the_thread_that_waits_for_a_longer_one(keeper, store, monkeypatch):
    monkeypatch.setattr(renewal, "_IDLE", 3600)
    keeper.add(store, make_lease(3600, key="a"))
    wait_until(lambda: store in keeper._wakes_at, seconds=SECONDS, what="the thread to wait")
    keeper.add(store, make_lease(key="b"))
    store.wait_for_calls(1)


def test_R69_a_thread_that_cannot_be_started_is_told_and_the_next_lease_tries_again(
    keeper, store, monkeypatch, caplog
):
    """The work goes on without a renewal."""
    with monkeypatch.context() as refusing:
        refusing.setattr(renewal.threading.Thread, "start", Mock(side_effect=RuntimeError))
        keeper.add(store, make_lease(key="a"))
    assert "could not be started" in caplog.text
    keeper.add(store, make_lease(key="b"))
    store.wait_for_calls(1)


def test_stops_after_the_removal_which_costs_no_call_in_time(keeper, store):
    removed, in_time, other = make_lease(key="a"), make_lease(3600, key="b"), make_lease(key="c")
    keeper.add(store, removed)
    keeper.add(store, in_time)
    keeper.remove(in_time)
    store.wait_for_calls(1)
    keeper.remove(removed)
    keeper.add(store, other)
    assert all(leases == {other} for leases in store.next_calls(3))
    assert all(in_time not in leases for leases, *_ in store.calls)


@pytest.mark.parametrize("seconds", [0.015, 3600])
def test_R69_max_duration_bounds_it_and_its_end_is_told_once(keeper, store, caplog, seconds):
    """Whether or not another lease, beside it, is due then."""
    lease, beside = make_lease(max_duration=0.04, key="a"), make_lease(seconds, key="b")
    keeper.add(store, lease)
    keeper.add(store, beside)
    wait_until(lambda: lease not in keeper._kept, seconds=SECONDS, what="its end")
    keeper.add(store, make_lease(key="c"))
    assert all(lease not in leases for leases in store.next_calls(3))
    lease.check()
    [entry] = caplog.records
    assert (entry.levelname, short(lease.record_id) in entry.getMessage()) == ("WARNING", True)
    assert "max_duration is over" in entry.getMessage()


@pytest.mark.parametrize("wanted", [None, lambda: True], ids=["work", "completion to come"])
@pytest.mark.parametrize("found", ["another's", "nothing", "no answer"])
def test_R60_a_lost_lease_is_marked_and_says_whether_its_record_is_gone(
    keeper, store, found, wanted
):
    lost, held, fresh = make_lease(key="a"), make_lease(key="b"), []

    @contextmanager
    def fresh_connection():
        fresh.append(True)
        yield
        fresh.clear()

    def get(record_id):
        assert fresh
        if found == "no answer":
            raise StoreError
        return object() if found == "another's" else None

    store.get, store.fresh_connection, store.lost = get, fresh_connection, {lost}
    for lease in (lost, held):
        keeper.add(store, lease, wanted=wanted)
    wait_until(lambda: lost.lost, seconds=SECONDS, what="the lease to be lost")
    assert all(leases == {held} for leases in store.next_calls(2))
    with pytest.raises(LeaseLost) as raised:
        lost.check()
    assert raised.value.gone is (found == "nothing")
    held.check()


@pytest.mark.parametrize("end", ["removed", "completion begun"])
def test_a_lease_that_ended_while_its_renewal_was_under_way_is_not_lost(keeper, store, end):
    lease, ended = make_lease(), threading.Event()

    def renew(leases, duration):
        ended.set()
        if end == "removed":
            keeper.remove(lease)
        return set()

    store.renew = renew
    keeper.add(store, lease, wanted=lambda: not ended.is_set())
    thread = keeper._threads[store]
    assert ended.wait(SECONDS)
    thread.join(SECONDS)
    lease.check()


def test_a_store_that_fails_does_not_end_it(keeper, store, caplog):
    store.error = ConnectionError("the store is down")
    lease = make_lease()
    keeper.add(store, lease)
    store.wait_for_calls(2)
    store.error = None
    store.next_calls(2)
    lease.check()
    assert {entry.levelname for entry in caplog.records} == {"ERROR"}


@pytest.mark.parametrize("name", ["add", "remove"])
def test_an_interrupt_leaves_its_lock_free(keeper, store, name):
    keeper.add(store, make_lease(3600, key="starts the thread"))

    def interrupt(frame, event, argument):  # as a signal's handler, when the lock has been taken
        if event == "return" and frame.f_code.co_filename == threading.__file__:
            raise KeyboardInterrupt

    arguments = (store, make_lease(60)) if name == "add" else (make_lease(60),)
    sys.setprofile(interrupt)
    try:
        with suppress(KeyboardInterrupt):
            getattr(keeper, name)(*arguments)
    finally:
        sys.setprofile(None)
    other = threading.Thread(target=keeper.remove, args=[make_lease()], daemon=True)
    other.start()
    other.join(5)
    is_free = not other.is_alive()
    if not is_free:  # the threads of this test are to end
        keeper._lock.release()
    assert is_free


def test_its_thread_ends_when_idle_and_starts_again(keeper, store):
    for error in (None, ConnectionError("it is gone")):  # which can then not be closed
        store.idled.clear()
        store.error = None
        keeper.add(store, lease := make_lease())
        thread = keeper._threads[store]
        store.next_calls(1)
        store.error = error
        keeper.remove(lease)
        assert store.idled.wait(SECONDS)  # its connection is given up before
        thread.join(SECONDS)
        assert keeper._threads == keeper._wakes_at == {}


def test_its_thread_stays_for_a_while_for_the_next_lease(keeper, store, monkeypatch):
    monkeypatch.setattr(renewal, "_IDLE", 3600)
    keeper.add(store, lease := make_lease())
    thread = keeper._threads[store]
    store.next_calls(1)
    keeper.remove(lease)
    assert store.idled.wait(SECONDS)

    def is_idle():
        return keeper._wakes_at.get(store, 0) > time.monotonic() + SECONDS

    wait_until(lambda: is_idle() or not thread.is_alive(), seconds=SECONDS, what="an idle thread")
    keeper.add(store, make_lease(key="next"))
    assert keeper._threads[store] is thread


def test_R69_a_store_that_does_not_answer_holds_up_no_other(keeper, store):
    blocked, held = Renewals(), make_lease(key="a")
    blocked.free.clear()
    keeper.add(blocked, held)
    assert blocked.entered.wait(SECONDS)
    keeper.add(store, other := make_lease(key="b"))
    store.wait_for_calls(3)
    assert blocked.calls == []
    assert all(leases == {other} for leases, *_ in store.calls)
    blocked.free.set()
    blocked.wait_for_calls(2)
    held.check()
    thread = keeper._threads[store]
    keeper.remove(other)  # nor does the other keep this one connected
    thread.join(SECONDS)
    assert store.idled.is_set()
    assert set(keeper._threads) == {blocked}
    assert not blocked.idled.is_set()


# What the engine gives to the keeper, and when it takes it back.


@pytest.fixture
def clock(engine):
    """The time of the store, in which leases lapse; the keeper goes by Python's."""
    engine.store._clock = FakeClock()
    return engine.store._clock


def test_R69_work_longer_than_its_lease_is_not_taken_over(engine, clock):
    def work(lease):
        for _ in range(3):
            clock.advance(0.15)
            engine.store.next_calls(1)
            with pytest.raises(InProgress):
                engine.run(operation(), pytest.fail)
        lease.check()
        return "A"

    assert engine.run(operation(lease=0.2, renew=True), work).replayed is False


def test_a_lease_leaves_the_keeper_before_its_completion_starts(engine, keeper):
    kept, complete = [], engine.store.complete
    note = lambda *arguments: kept.append(len(keeper._kept))  # noqa: E731
    engine.store.complete = lambda *args, **options: note() or complete(*args, **options)
    for policy in ({"renew": True}, {"renew": False}, {"renew": True, "deadline": lambda: 60}):
        engine.run(operation(str(policy), **policy), note)
    assert kept == [1, 0, 0, 0, 0, 0]


def test_a_lease_leaves_the_keeper_when_the_work_is_interrupted(engine, keeper):
    async def interrupted():
        async with engine.aattempt(operation(renew=True)):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(operation(renew=True), Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(interrupted())
    assert keeper._kept == {}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("end", ["result", "kept error", "error", "refusal"])
@pytest.mark.parametrize("is_within", [True, False], ids=["atomic", "autocommit"])
def test_R94_after_the_work_a_lease_is_kept_for_a_completion_that_is_to_come(
    engine, keeper, is_within, end
):
    def work(lease):
        if end.endswith("error"):
            raise ValueError
        return 1

    def judge(result):
        return Verdict("fail" if end == "refusal" else "keep")

    on_error = (lambda error: "sorry") if end == "kept error" else None
    with transaction.atomic() if is_within else nullcontext():
        outer = OpenTransactions(engine.store).outer()
        guarded = replace(operation(renew=True), outer=outer)
        with suppress(ValueError), engine.attempt(guarded, on_error, judge) as attempt:
            attempt.complete(work(attempt.lease))
        kept = list(keeper._kept.values())
        assert len(kept) == (is_within and end in ("result", "kept error"))
        assert all(it.wanted() for it in kept)
    assert not any(it.wanted() for it in kept)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("end", ["commit", "rollback", "kept error"])
def test_R69_R94_I8_lease_is_kept_until_the_callers_transaction_ends(engine, keeper, clock, end):
    def work(lease):
        if end == "kept error":
            raise ValueError
        return 1

    with transaction.atomic():
        outer = OpenTransactions(engine.store).outer()
        guarded = replace(operation(lease=0.2, renew=True), outer=outer)
        outcome = engine.run(guarded, work, lambda error: "sorry")
        for _ in range(2):
            clock.advance(0.15)
            engine.store.next_calls(1)
        with pytest.raises(InProgress):
            engine.run(operation(), pytest.fail)
        transaction.set_rollback(end == "rollback")
    if end != "rollback":
        assert engine.store.get(outcome.record_id).state is State.COMPLETED
    wait_until(lambda: not keeper._kept, seconds=SECONDS, what="the keeper to give it up")
