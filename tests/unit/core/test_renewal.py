"""Renewal: the keeper's thread, on a store that records what it is asked (R69)."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import transaction

from django_idempotency import InProgress, LeaseLost, StoreError
from django_idempotency.claims import ClaimRequest
from django_idempotency.codecs import JSONCodec
from django_idempotency.engine import Engine, Operation, renewal
from django_idempotency.engine.renewal import Keeper
from django_idempotency.engine.transactions import of_caller
from django_idempotency.fingerprint import Fingerprint
from django_idempotency.keys import record_id, short
from django_idempotency.leases import Lease, Proof
from django_idempotency.policy import Policy
from django_idempotency.records import State
from django_idempotency.stores.base import BaseStore
from django_idempotency.stores.memory import MemoryStore
from tests.services.processes import wait_until

SECONDS = 10.0


class Call:
    """One call of `renew`, and when it came."""

    def __init__(self, leases, duration):
        self.leases = set(leases)
        self.duration = duration
        self.at = time.monotonic()


class Renewals(BaseStore):
    """Renews nothing, says what it was told to say, and tells the test of each call."""

    def __init__(self):
        self.calls = []
        self.lost = set()
        self.get = lambda record_id: object()
        self.error = None
        self.called = threading.Condition()
        self.idled = threading.Event()

    def renew(self, leases, duration):
        with self.called:
            self.calls.append(Call(leases, duration))
            self.called.notify_all()
        if self.error is not None:
            raise self.error
        return set(leases) - self.lost

    def idle(self):
        self.idled.set()

    def wait_for_calls(self, number):
        with self.called:
            assert self.called.wait_for(lambda: len(self.calls) >= number, SECONDS)


class Blocked(Renewals):
    """Does not answer before it is set free."""

    def __init__(self):
        super().__init__()
        self.entered = threading.Event()
        self.free = threading.Event()

    def renew(self, leases, duration):
        self.entered.set()
        self.free.wait(SECONDS)
        return super().renew(leases, duration)


@pytest.fixture
def store():
    return Renewals()


@pytest.fixture
def keeper(monkeypatch):
    """A keeper of the test's own, which ends soon after its last lease is gone."""
    monkeypatch.setattr(renewal, "_IDLE", 0.05)
    keeper = Keeper()
    yield keeper
    for lease in list(keeper._kept):
        keeper.remove(lease)
    for thread in list(keeper._threads.values()):
        thread.join(SECONDS)
        assert not thread.is_alive()


def make_lease(seconds=0.03, *, max_duration=3600.0, key="k"):
    identifier = record_id("call", "s", key)
    request = ClaimRequest(
        identifier,
        "s",
        key,
        lease=timedelta(seconds=seconds),
        max_duration=timedelta(seconds=max_duration),
    )
    return Lease(Proof(identifier, 1, request.token), request)


class TestKeeper:
    def test_R69_renews_for_the_whole_lease_again_and_again(self, keeper, store):
        lease = make_lease()
        keeper.add(store, lease)
        store.wait_for_calls(5)
        assert all(call.leases == {lease} for call in store.calls)
        assert all(call.duration == timedelta(seconds=0.03) for call in store.calls)
        lease.check()

    def test_R69_from_a_third_on(self, keeper, store):
        lease = make_lease(0.3)
        added = time.monotonic()
        keeper.add(store, lease)
        store.wait_for_calls(2)
        first, second = (call.at for call in store.calls[:2])
        # The call's own time lies a little after the renewal that it belongs to.
        assert 0.1 <= first - added < 0.3
        assert 0.09 <= second - first < 0.3

    @pytest.mark.parametrize(
        ("apart", "together"), [(0.02, True), (0.15, False)], ids=["soon", "much later"]
    )
    def test_what_is_due_soon_is_taken_along(self, keeper, store, apart, together):
        """Leases of 0.6 s are renewed five times a second."""
        first, second = make_lease(0.6, key="a"), make_lease(0.6, key="b")
        with keeper._changed:
            keeper.add(store, first)
            keeper.add(store, second)
            keeper._kept[first].due = keeper._kept[second].due - apart
        store.wait_for_calls(1)
        assert store.calls[0].leases == ({first, second} if together else {first})

    def test_leases_of_two_durations_are_not_mixed(self, keeper, store):
        short, long = make_lease(0.03, key="a"), make_lease(0.06, key="b")
        keeper.add(store, short)
        keeper.add(store, long)
        store.wait_for_calls(12)
        for call in store.calls:
            assert {lease.request.lease for lease in call.leases} == {call.duration}
        assert {call.duration for call in store.calls} == {
            timedelta(seconds=0.03),
            timedelta(seconds=0.06),
        }

    def test_a_shorter_lease_wakes_the_thread_that_waits_for_a_longer_one(
        self, keeper, store, monkeypatch
    ):
        monkeypatch.setattr(renewal, "_IDLE", 0.6)
        keeper.add(store, make_lease(3600, key="a"))
        wait_until(lambda: store in keeper._wakes_at, seconds=SECONDS, what="the thread to wait")
        added = time.monotonic()
        keeper.add(store, make_lease(0.03, key="b"))
        store.wait_for_calls(1)
        assert store.calls[0].at - added < 0.4

    def test_stops_after_the_removal(self, keeper, store):
        removed, other = make_lease(key="a"), make_lease(key="b")
        keeper.add(store, removed)
        store.wait_for_calls(1)
        keeper.remove(removed)
        keeper.add(store, other)
        with store.called:
            known = len(store.calls)
        store.wait_for_calls(known + 4)
        # One call may have been under way while the lease was removed.
        assert all(removed not in call.leases for call in store.calls[known + 1 :])

    def test_a_lease_removed_in_time_costs_no_call(self, keeper, store):
        lease = make_lease(3600)
        keeper.add(store, lease)
        keeper.remove(lease)
        keeper._threads[store].join(SECONDS)
        assert store.calls == []

    def test_R69_max_duration_bounds_it_and_its_end_is_told_once(self, keeper, store, caplog):
        lease, other = make_lease(0.03, max_duration=0.1, key="a"), make_lease(key="b")
        keeper.add(store, lease)
        keeper.add(store, other)
        wait_until(lambda: lease not in keeper._kept, seconds=SECONDS, what="its end")
        with store.called:
            known = len(store.calls)
        store.wait_for_calls(known + 3)
        assert all(call.leases == {other} for call in store.calls[known + 1 :])
        lease.check()
        assert [(entry.levelname, entry.getMessage()) for entry in caplog.records] == [
            (
                "WARNING",
                f"The lease on record {short(lease.record_id)} is renewed no longer: "
                "its max_duration is over.",
            )
        ]

    @pytest.mark.parametrize("end", ["removed", "unwanted"])
    def test_R69_work_that_ended_in_time_is_not_told(self, keeper, store, caplog, end):
        ended = threading.Event()
        lease = make_lease(0.03, max_duration=0.1)
        keeper.add(store, lease, wanted=lambda: not ended.is_set())
        thread = keeper._threads[store]
        store.wait_for_calls(1)
        with keeper._changed:
            ended.set() if end == "unwanted" else keeper.remove(lease)
            time.sleep(0.1)  # its max_duration is over when the thread looks again
        thread.join(SECONDS)
        assert not thread.is_alive()
        assert caplog.records == []

    def test_a_lost_lease_is_marked_and_asked_for_no_more(self, keeper, store):
        lost, held = make_lease(key="a"), make_lease(key="b")
        store.lost.add(lost)
        keeper.add(store, lost)
        keeper.add(store, held)
        store.wait_for_calls(5)
        with pytest.raises(LeaseLost):
            lost.check()
        held.check()
        assert all(lost not in call.leases for call in store.calls[3:])

    @pytest.mark.parametrize("found", ["another's", "nothing", "no answer"])
    def test_R60_a_lost_lease_says_whether_its_record_is_gone(self, keeper, store, found):
        asked = threading.Event()
        fresh = []

        @contextmanager
        def fresh_connection():
            fresh.append(True)
            yield
            fresh.clear()

        def get(record_id):
            assert fresh
            asked.set()
            if found == "no answer":
                raise StoreError
            return object() if found == "another's" else None

        store.get, store.fresh_connection = get, fresh_connection
        lease = make_lease()
        store.lost.add(lease)
        keeper.add(store, lease)
        assert asked.wait(SECONDS)
        wait_until(lambda: lease.lost, seconds=SECONDS, what="the lease to be lost")
        with pytest.raises(LeaseLost) as raised:
            lease.check()
        assert raised.value.gone is (found == "nothing")

    @pytest.mark.parametrize("end", ["removed", "completion begun"])
    def test_a_lease_that_ended_while_its_renewal_was_under_way_is_not_lost(
        self, keeper, store, end
    ):
        lease = make_lease()

        def renew(leases, duration):
            ended.set()
            if end == "removed":
                keeper.remove(lease)
            renewed.set()
            return set()

        ended, renewed = threading.Event(), threading.Event()
        store.renew = renew
        keeper.add(store, lease, wanted=lambda: not ended.is_set())
        assert renewed.wait(SECONDS)
        for thread in list(keeper._threads.values()):
            thread.join(SECONDS)
        lease.check()

    def test_a_store_that_fails_does_not_end_it(self, keeper, store, caplog):
        store.error = ConnectionError("the store is down")
        lease = make_lease()
        keeper.add(store, lease)
        store.wait_for_calls(3)
        store.error = None
        store.wait_for_calls(6)
        lease.check()
        assert {entry.levelname for entry in caplog.records} == {"ERROR"}

    def test_a_store_whose_connection_cannot_be_closed_does_not_end_it(self, keeper, store):
        def idle():
            store.idled.set()
            raise ConnectionError("it is gone")

        store.idle = idle
        lease = make_lease()
        keeper.add(store, lease)
        store.wait_for_calls(1)
        keeper.remove(lease)
        assert store.idled.wait(SECONDS)
        keeper.add(store, lease)
        with store.called:
            known = len(store.calls)
        store.wait_for_calls(known + 2)

    def test_its_thread_ends_when_idle_and_starts_again(self, keeper, store):
        for _ in range(2):
            store.idled.clear()
            known = len(store.calls)
            lease = make_lease()
            keeper.add(store, lease)
            thread = keeper._threads[store]
            store.wait_for_calls(known + 1)
            assert thread.daemon
            keeper.remove(lease)
            assert store.idled.wait(SECONDS)  # its connection is given up before
            thread.join(SECONDS)
            assert not thread.is_alive()
            assert keeper._threads == keeper._wakes_at == {}


class TestSeveralStores:
    """Stores do not wait for one another (R69)."""

    @pytest.fixture
    def blocked(self):
        blocked = Blocked()
        yield blocked
        blocked.free.set()

    def test_R69_one_that_does_not_answer_holds_up_no_other(self, keeper, store, blocked):
        held = make_lease(key="a")
        keeper.add(blocked, held)
        assert blocked.entered.wait(SECONDS)
        keeper.add(store, make_lease(key="b"))
        store.wait_for_calls(5)
        assert blocked.calls == []
        blocked.free.set()
        blocked.wait_for_calls(3)
        held.check()

    def test_a_store_whose_leases_ended_is_not_kept_connected_by_another(self, keeper, store):
        other, lease = Renewals(), make_lease(key="a")
        keeper.add(store, lease)
        keeper.add(other, make_lease(key="b"))
        store.wait_for_calls(1)
        thread = keeper._threads[store]
        keeper.remove(lease)
        assert store.idled.wait(SECONDS)
        thread.join(SECONDS)
        assert set(keeper._threads) == {other}
        assert not other.idled.is_set()
        with other.called:
            known = len(other.calls)
        other.wait_for_calls(known + 2)


class RenewedMemory(MemoryStore):
    """A memory store that says when it was asked to renew."""

    def __init__(self):
        super().__init__()
        self.asked = threading.Condition()
        self.calls = 0

    def renew(self, leases, duration):
        held = super().renew(leases, duration)
        with self.asked:
            self.calls += 1
            self.asked.notify_all()
        return held

    def wait_for_calls(self, number):
        with self.asked:
            assert self.asked.wait_for(lambda: self.calls >= number, SECONDS)


def operation(**policy):
    return Operation(
        record_id=record_id("call", "s", "k"),
        scope="s",
        key="k",
        name="",
        fingerprint=Fingerprint(b"", (b"f" * 32,)),
        policy=Policy(**policy),
        codec=JSONCodec(),
    )


class TestEngine:
    """What the engine gives to the keeper, and when it takes it back."""

    @pytest.fixture
    def engine(self, keeper):
        return Engine(RenewedMemory(), keeper=keeper)

    def test_R69_work_longer_than_its_lease_is_not_taken_over(self, engine):
        def work(lease):
            for calls in (3, 6):
                engine.store.wait_for_calls(calls)
                with pytest.raises(InProgress):
                    engine.run(operation(lease=0.2), lambda lease: pytest.fail("ran"))
            lease.check()
            return "A"

        assert engine.run(operation(lease=0.2), work).replayed is False

    def test_with_renew_off_nothing_is_kept(self, engine, keeper):
        kept = []
        engine.run(operation(renew=False), lambda lease: kept.extend(keeper._kept))
        assert kept == []

    def test_a_lease_leaves_the_keeper_before_its_completion_starts(self, engine, keeper):
        kept = []
        complete = engine.store.complete

        def watched(lease, result, *, retention):
            kept.append(dict(keeper._kept))
            return complete(lease, result, retention=retention)

        engine.store.complete = watched
        engine.run(operation(), lambda lease: kept.append(dict(keeper._kept)) or None)
        assert [len(leases) for leases in kept] == [1, 0]

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
    @pytest.mark.parametrize("caller", ["run", "arun"])
    def test_a_lease_leaves_the_keeper_however_the_work_ends(self, engine, keeper, error, caller):
        def fail(lease=None):
            raise error

        async def afail():
            async with engine.aattempt(operation()):
                fail()

        with pytest.raises(error):
            engine.run(operation(), fail) if caller == "run" else asyncio.run(afail())
        assert keeper._kept == {}


@pytest.mark.django_db(transaction=True)
class TestCallersTransaction:
    """Another store's attempt is over, its completion waits: nobody may take over meanwhile."""

    @pytest.mark.parametrize("committed", [True, False])
    def test_R69_I8_lease_is_kept_until_the_callers_transaction_ends(self, keeper, committed):
        engine = Engine(RenewedMemory(), keeper=keeper)
        with transaction.atomic():
            guarded = replace(operation(lease=0.3), caller=of_caller(engine.store))
            outcome = engine.run(guarded, lambda lease: 1)
            engine.store.wait_for_calls(2)
            with pytest.raises(InProgress):
                engine.run(operation(), lambda lease: pytest.fail("took over"))
            transaction.set_rollback(not committed)
        if committed:
            assert engine.store.get(outcome.record_id).state is State.COMPLETED
        wait_until(lambda: not keeper._kept, seconds=SECONDS, what="the keeper to give it up")
